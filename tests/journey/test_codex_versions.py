"""Versions of Codex: one that is too old is refused everywhere with what to do, an unknown or newer one works."""

import json
import logging
import shlex
from pathlib import Path

import anyio
import pytest

from outrider.core.events import Ended, Entry, Reply
from outrider.runtimes.base import ProbeResult
from outrider.runtimes.codex.errors import USE_NATIVE_HINT
from outrider.runtimes.codex.versions import (
    NEWEST_TESTED,
    OLDEST_SUPPORTED,
    UPDATE,
    CodexVersion,
    parse_version,
    too_old,
    untested,
)
from outrider.testing.scripted_model import says
from outrider.testing.scripted_server.script import script
from outrider.testing.scripted_server.server import open_scripted_server
from tests.support.codex import codex_binary, open_codex, shell
from tests.support.in_process import InProcessPerson as Person
from tests.support.scripted_codex import ScriptedCodex

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]
OLD = CodexVersion(OLDEST_SUPPORTED.major, OLDEST_SUPPORTED.minor - 1, 9)
NEWER = CodexVersion(NEWEST_TESTED.major, NEWEST_TESTED.minor + 1)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("outrider/0.166.0 (Debian 12.0.0; x86_64) dumb (outrider; 0.1.0)", CodexVersion(0, 166)),
        ("codex_cli_rs/0.133.0-alpha.4 (Mac OS 15.1; arm64)", CodexVersion(0, 133)),
        ("My Editor/1.170.2 (Debian 12.0.0; x86_64)", CodexVersion(1, 170, 2)),
        ("outrider/0.166 (Debian)", CodexVersion(0, 166)),
        ("outrider/0.0.0 (Debian 12.0.0; x86_64)", None),
        ("outrider/dev", None),
        ("", None),
    ],
)
def test_the_version_is_read_from_what_codex_says_about_itself(text: str, version: CodexVersion | None) -> None:
    assert parse_version(text) == version


def test_only_versions_below_the_oldest_are_refused_and_only_newer_ones_are_untested() -> None:
    versions = (OLD, OLDEST_SUPPORTED, NEWEST_TESTED, CodexVersion(0, NEWEST_TESTED.minor, 3), NEWER, None)
    assert [bool(too_old(version)) for version in versions] == [True, False, False, False, False, False]
    assert [bool(untested(version)) for version in versions] == [False, False, False, False, True, True]


async def test_a_turn_is_not_given_to_a_codex_that_is_too_old(tmp_path: Path) -> None:
    codex = ScriptedCodex(tmp_path)
    codex.will(version=str(OLD))
    async with codex.open_agent() as agent:
        with anyio.fail_after(60):
            ended = await agent.say("go", session="s")
    assert (ended.outcome, codex.requests("thread/start"), codex.alive()) == ("failed", [], [])
    for part in (f"Codex {OLD} is too old", f"needs {OLDEST_SUPPORTED}", "outside of the sandbox", UPDATE):
        assert part in ended.error
    assert ended.error.endswith(USE_NATIVE_HINT)


@pytest.mark.behaviour("A14")
@pytest.mark.parametrize("version", [str(NEWER), "dev"])
async def test_a_newer_or_unknown_version_runs_turns_and_the_log_says_that_it_was_not_tested(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, version: str
) -> None:
    codex = ScriptedCodex(tmp_path)
    codex.will(version=version)
    async with codex.open_agent() as agent:
        with anyio.fail_after(60), caplog.at_level(logging.WARNING, "outrider.codex"):
            ended = await agent.say("go", session="s")
    assert (ended.outcome, ended.text) == ("done", "ok")
    assert f"{NEWEST_TESTED}" in caplog.text


@pytest.fixture
def person(tmp_path: Path) -> Person:
    return Person(tmp_path)


def use_scripted(person: Person, version: str) -> None:
    codex = ScriptedCodex(person.folder / "beside")
    codex.will(version=version)
    person.environ |= {"OUTRIDER_CODEX_COMMAND": codex.command, "OUTRIDER_CODEX_HOME": str(codex.folder)}


def test_the_commands_about_runtimes_name_a_version_that_is_too_old(person: Person) -> None:
    (person.folder / "beside").mkdir()
    use_scripted(person, str(OLD))
    checks = json.loads(person.types("runtime", "doctor", "codex", "--json").out)["checks"]
    assert checks[1:] == [{"name": "version", "verdict": "broken", "text": too_old(OLD), "advice": UPDATE}]
    used = person.types("runtime", "use", "codex")
    assert (used.code, f"Codex {OLD} is too old" in used.err, UPDATE in used.err) == (2, True, True)
    (row,) = [line for line in person.types("runtime", "list").out.splitlines() if line.split()[0] == "codex"]
    assert (row.split()[1], f"Codex {OLD} is too old" in row) == ("not", True)


def test_the_commands_about_runtimes_say_that_a_version_is_newer_than_tested(person: Person) -> None:
    (person.folder / "beside").mkdir()
    use_scripted(person, str(NEWER))
    report = json.loads(person.types("runtime", "doctor", "codex", "--json").out)
    assert report["ok"]
    remark = ProbeResult("version", "odd", f"{NEWER}, {untested(NEWER)}")
    assert [check["text"] for check in report["checks"] if check["verdict"] == "odd"] == [remark.text]
    assert person.types("runtime", "use", "codex").code == 0
    (row,) = [line for line in person.types("runtime", "list").out.splitlines() if line.split()[:2] == ["*", "codex"]]
    assert f"{NEWER}, newer than" in row


@pytest.mark.needs("bubblewrap")
@pytest.mark.behaviour("A14")
async def test_a_turn_resumes_once_with_a_codex_that_does_not_list_turns(tmp_path: Path) -> None:
    command = without_methods(tmp_path, "thread/turns/list")
    lines = script(says("one", shell("echo first >> log")), says("two", shell("touch began; sleep 300")), says("three"))
    async with open_scripted_server(lines) as server:
        with anyio.fail_after(90):
            async with open_codex(tmp_path, server.url, codex_command=command) as agent:
                session = await agent.session("s")
                await agent.post("go", session=session, address="terminal:t")
                while not (tmp_path / "work" / "began").exists():
                    await anyio.sleep(0.02)
            async with open_codex(tmp_path, server.url, codex_command=command) as agent:
                await agent.resume_all()
                async for event in agent.follow(session):
                    if isinstance(event, Entry) and isinstance(event.body, Ended):
                        break
                entries = await agent.journal(session)
    replies = [entry.body.text for entry in entries if isinstance(entry.body, Reply) and entry.body.text]
    assert (replies, (tmp_path / "work" / "log").read_text()) == (["one", "two", "three"], "first\n")


async def test_a_codex_that_cannot_say_what_it_did_is_named_in_words(tmp_path: Path) -> None:
    command = without_methods(tmp_path, "thread/turns/list", "thread/read")
    async with open_scripted_server(script(says("one"), says("two"))) as server:
        with anyio.fail_after(90):
            async with open_codex(tmp_path, server.url, codex_command=command) as agent:
                assert (await agent.say("go", session="s")).text == "one"
            async with open_codex(tmp_path, server.url, codex_command=command) as agent:
                ended = await agent.say("again", session="s")
    assert ended.outcome == "failed"
    assert ended.error.startswith("this version of Codex cannot say what it has done in this session")
    assert ("variant" in ended.error, USE_NATIVE_HINT in ended.error) == (False, True)


def without_methods(folder: Path, *methods: str) -> str:
    """The real Codex without these methods: it answers as to any method that it does not know."""
    path = folder / "reduced-codex"
    changes = ";".join(f's#"{method}"#"{method}/unknown"#' for method in methods)
    path.write_text(f'#!/bin/sh\nsed -u {shlex.quote(changes)} | {shlex.quote(codex_binary())} "$@"\n')
    path.chmod(0o755)
    return str(path)
