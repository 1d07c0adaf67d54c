"""Checks of a Codex that cannot be used: the problem is reported precisely, and no process is left running."""

import json
from pathlib import Path

import pytest

from outrider.runtimes.base import ProbeResult
from outrider.runtimes.codex.launch import INSTALL
from outrider.runtimes.codex.probe import version_of
from outrider.runtimes.jsonrpc.process import Program
from tests.support.codex import codex_binary, codex_home
from tests.support.in_process import InProcessPerson as Person
from tests.support.tasks import is_gone

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(180)]


@pytest.fixture
def person(tmp_path: Path) -> Person:
    return Person(tmp_path)


def program(folder: Path, *lines: str) -> Program:
    path = folder / "codex"
    path.write_text("\n".join(("#!/bin/sh", *lines, "")))
    path.chmod(0o755)
    return Program((str(path),), folder, {"PATH": "/usr/bin:/bin"})


@pytest.mark.parametrize("kind", ["missing", "file", "relative"])
def test_an_invalid_codex_home_is_reported_in_codexs_words_with_advice(person: Person, kind: str) -> None:
    (person.folder / "file").touch()
    home = {"missing": str(person.folder / "x"), "file": str(person.folder / "file"), "relative": "rel"}[kind]
    person.environ |= {"OUTRIDER_CODEX_COMMAND": codex_binary(), "CODEX_HOME": home}
    report = person.types("runtime", "doctor", "codex")
    (line,) = [line for line in report.out.splitlines() if line.startswith("✗")]
    assert (report.code, f'CODEX_HOME points to "{home}"' in line, "set codex.home" in line) == (1, True, True)
    assert "update Codex" not in report.out
    ran = person.types("run", "-r", "codex", "hi")
    assert (ran.code, f'CODEX_HOME points to "{home}"' in ran.err, "backtrace" in ran.err) == (1, True, False)


def test_settings_that_codex_cannot_read_are_reported_with_file_and_line_not_as_a_missing_login(
    person: Person,
) -> None:
    home = codex_home(person.folder, "http://127.0.0.1:9/v1", more="\nfoo = [1,\nbar\n")
    person.environ |= {"OUTRIDER_CODEX_COMMAND": codex_binary(), "OUTRIDER_CODEX_HOME": str(home)}
    report = person.types("runtime", "doctor", "codex").out
    table = person.types("runtime", "list").out
    error = person.types("run", "-r", "codex", "hi").err
    for text in (report, table, error):
        assert f"Codex cannot read its own settings: {home}/config.toml:" in text
        assert "codex login" not in text


async def test_the_version_is_read_from_one_well_formed_line_of_stdout(tmp_path: Path) -> None:
    warns = program(tmp_path, "echo 'WARNING: proceeding, codex 9.9.9' >&2", "echo codex-cli 0.163.0")
    assert await version_of(warns) == ProbeResult("version", "fine", "0.163.0")
    silent = await version_of(program(tmp_path))
    assert silent == ProbeResult(
        "version", "broken", "`--version` prints nothing, which is not a version of Codex", INSTALL
    )
    two = await version_of(program(tmp_path, "echo 0.163.0", "echo 0.164.0"))
    assert (two.verdict, "0.163.0 0.164.0" in two.text) == ("broken", True)
    failed = await version_of(program(tmp_path, "echo 'no such node' >&2", "exit 3"))
    assert failed.text == "`--version`: codex ended with exit status 3: no such node"


async def test_a_program_that_hangs_is_killed_with_all_its_processes(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    hangs = program(tmp_path, "sleep 1000 &", f"echo $$ $! > {pids}.new; mv {pids}.new {pids}", "wait")
    result = await version_of(hangs, within=2)
    assert result == ProbeResult("version", "broken", "it did not answer `--version` within 2 s", INSTALL)
    assert [is_gone(int(pid)) for pid in pids.read_text().split()] == [True, True]


def test_a_path_that_is_no_program_is_reported_as_what_it_is(person: Person) -> None:
    plain, folder = person.folder / "plain", person.folder / "folder"
    plain.touch(mode=0o644)
    folder.mkdir()
    for path, reason in ((plain, "is not executable"), (folder, "is a folder, not a program")):
        person.environ |= {"OUTRIDER_CODEX_COMMAND": str(path), "OUTRIDER_ACP_COMMAND": str(path)}
        for name in ("codex", "acp"):
            report = json.loads(person.types("runtime", "doctor", name, "--json").out)
            assert [check["verdict"] for check in report["checks"]] == ["broken"]
            assert f"{path} {reason}" in report["checks"][0]["text"]
