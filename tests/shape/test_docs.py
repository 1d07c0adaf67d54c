"""The prose is true: links lead somewhere, commands exist, examples run, quoted numbers are the real ones."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from outrider.cli.commands import root
from tests.shape.repository import ROOT, Fence, fences, name_of, pages, without_fences
from tests.shape.test_sizes import LONG_MODULE, LONGEST_FUNCTION, LONGEST_MODULE

_LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_HEADING = re.compile(r"^#+\s+(?P<title>.+?)\s*$", re.MULTILINE)
_COMMAND = re.compile(r"(?:^|`)outrider ((?!-)[a-z-]+(?: [a-z][a-z-]*)?)(?=[ `\n]|$)", re.MULTILINE)
_BIN = Path(sys.executable).parent


def _commands() -> list[list[str]]:
    """Each `outrider sessions list` that a page mentions, as words."""
    found = {command for page in pages() for command in _COMMAND.findall(page.read_text(encoding="utf-8"))}
    return [command.split() for command in sorted(found)]


def test_every_link_between_pages_leads_somewhere() -> None:
    broken = [
        f"{name_of(page)}: {target}"
        for page in pages()
        for target in _LINK.findall(without_fences(page.read_text(encoding="utf-8")))
        if not target.startswith(("https://", "http://", "mailto:")) and not _leads_somewhere(page, target)
    ]
    assert broken == []


def test_the_index_names_every_page() -> None:
    index = ROOT / "docs" / "README.md"
    named = {(index.parent / target).resolve() for target in _LINK.findall(index.read_text(encoding="utf-8"))}
    below = {page for page in pages() if page.is_relative_to(index.parent)}
    assert sorted(name_of(page) for page in below - named - {index}) == []


def test_every_dev_command_in_the_prose_exists() -> None:
    usage = subprocess.run([ROOT / "dev", "help"], capture_output=True, text=True, check=True, timeout=60).stdout
    known = set(re.findall(r"^  ([a-z]+)", usage, re.MULTILINE))
    used = {(name_of(page), word) for page in pages() for word in re.findall(r"\./dev ([a-z]+)", page.read_text())}
    assert sorted((page, word) for page, word in used if word not in known) == []


@pytest.mark.parametrize("words", _commands(), ids=" ".join)
def test_every_outrider_command_in_the_prose_exists(words: list[str]) -> None:
    shown = CliRunner().invoke(root, [*words, "--help"])
    assert (shown.exit_code, shown.exception) == (0, None), shown.output


def test_the_readme_starts_with_the_two_commands_that_ci_runs() -> None:
    first = next(fence for fence in fences("sh") if fence.page == "README.md")
    assert re.findall(r"^\./dev \w+", first.text, re.MULTILINE) == ["./dev try", "./dev check"]
    assert re.findall(r"^run \d+ (\./dev \w+)", (ROOT / ".ci/run").read_text(), re.MULTILINE) == [
        "./dev try",
        "./dev check",
    ]


def test_line_counts_in_the_prose_are_limits_that_are_checked() -> None:
    quoted = {
        (name_of(page), int(number.replace(",", "")))
        for page in pages()
        for number in re.findall(r"(\d[\d,]*) lines\b", page.read_text(encoding="utf-8"))
        if page.parent == ROOT and page.name != "CHANGELOG.md"
    }
    assert (
        sorted(
            (page, number)
            for page, number in quoted
            if number not in (40, LONG_MODULE, LONGEST_MODULE, LONGEST_FUNCTION)
        )
        == []
    )


def test_the_page_for_agents_stays_short() -> None:
    assert len((ROOT / "AGENTS.md").read_text(encoding="utf-8").splitlines()) <= 40


@pytest.mark.parametrize("fence", fences("sh run"), ids=str)
def test_a_shell_example_runs_in_an_empty_home(fence: Fence, tmp_path: Path) -> None:
    _run(["sh", "-eu", "-c", fence.text], tmp_path)


@pytest.mark.parametrize("fence", fences("python run"), ids=str)
def test_a_python_example_runs_in_an_empty_home(fence: Fence, tmp_path: Path) -> None:
    _run([sys.executable, "-W", "error", "-c", fence.text], tmp_path)


def _run(command: list[str], folder: Path) -> None:
    """As a newcomer would: no settings, no key, a folder with nothing in it."""
    home, here = folder / "home", folder / "project"
    home.mkdir()
    here.mkdir()
    clean = {
        "PATH": f"{_BIN}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(home),
        "OUTRIDER_HOME": str(home / ".outrider"),
        "LANG": "C.UTF-8",
        "TERM": "dumb",
    }
    ran = subprocess.run(
        command, cwd=here, env=clean, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
    )
    if ran.returncode:
        pytest.fail(f"exit {ran.returncode}\n{ran.stdout}\n{ran.stderr}")


def _leads_somewhere(page: Path, target: str) -> bool:
    path, _, anchor = target.partition("#")
    there = (page.parent / path).resolve() if path else page
    if not there.exists():
        return False
    return not anchor or anchor in {_slug(title) for title in _HEADING.findall(there.read_text(encoding="utf-8"))}


def _slug(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
