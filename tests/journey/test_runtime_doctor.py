"""What is wrong with a Codex that cannot be used is named as it is, and nothing that was tried is left running."""

import json
from pathlib import Path

import pytest

from outrider.runtimes.base import ProbeResult
from outrider.runtimes.codex.launch import INSTALL
from outrider.runtimes.codex.probe import version_of
from outrider.runtimes.jsonrpc.process import Program
from tests.journey.support import Person
from tests.support.codex import codex_binary, codex_home
from tests.support.tasks import is_gone

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(180)]


def program(folder: Path, *lines: str) -> Program:
    path = folder / "codex"
    path.write_text("\n".join(("#!/bin/sh", *lines, "")))
    path.chmod(0o755)
    return Program((str(path),), folder, {"PATH": "/usr/bin:/bin"})


@pytest.mark.parametrize("kind", ["missing", "file", "relative"])
def test_a_home_of_codex_that_is_none_is_told_in_codexs_words_with_what_to_do(person: Person, kind: str) -> None:
    (person.folder / "file").touch()
    home = {"missing": str(person.folder / "x"), "file": str(person.folder / "file"), "relative": "rel"}[kind]
    person.environ |= {"OUTRIDER_CODEX_COMMAND": codex_binary(), "CODEX_HOME": home}
    told = person.types("runtime", "doctor", "codex")
    (line,) = [line for line in told.out.splitlines() if line.startswith("✗")]
    assert (told.code, f'CODEX_HOME points to "{home}"' in line, "set codex.home" in line) == (1, True, True)
    assert "update Codex" not in told.out
    ran = person.types("run", "-r", "codex", "hi")
    assert (ran.code, f'CODEX_HOME points to "{home}"' in ran.err, "backtrace" in ran.err) == (1, True, False)


def test_settings_that_codex_cannot_read_are_named_with_file_and_line_and_not_taken_for_a_login(person: Person) -> None:
    home = codex_home(person.folder, "http://127.0.0.1:9/v1", more="\nfoo = [1,\nbar\n")
    person.environ |= {"OUTRIDER_CODEX_COMMAND": codex_binary(), "OUTRIDER_CODEX_HOME": str(home)}
    told = person.types("runtime", "doctor", "codex").out
    listed = person.types("runtime", "list").out
    ran = person.types("run", "-r", "codex", "hi").err
    for said in (told, listed, ran):
        assert f"Codex cannot read its own settings: {home}/config.toml:" in said
        assert "codex login" not in said


async def test_a_version_is_what_stdout_says_and_only_one_line_in_its_shape(tmp_path: Path) -> None:
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


async def test_a_program_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    hangs = program(tmp_path, "sleep 1000 &", f"echo $$ $! > {pids}.new; mv {pids}.new {pids}", "wait")
    told = await version_of(hangs, within=2)
    assert told == ProbeResult("version", "broken", "it did not answer `--version` within 2 s", INSTALL)
    assert [is_gone(int(pid)) for pid in pids.read_text().split()] == [True, True]


def test_what_is_no_program_is_told_as_what_it_is(person: Person) -> None:
    plain, folder = person.folder / "plain", person.folder / "folder"
    plain.touch(mode=0o644)
    folder.mkdir()
    for path, reason in ((plain, "is not executable"), (folder, "is a folder, not a program")):
        person.environ |= {"OUTRIDER_CODEX_COMMAND": str(path), "OUTRIDER_ACP_COMMAND": str(path)}
        for name in ("codex", "acp"):
            report = json.loads(person.types("runtime", "doctor", name, "--json").out)
            assert [check["verdict"] for check in report["checks"]] == ["broken"]
            assert f"{path} {reason}" in report["checks"][0]["text"]
