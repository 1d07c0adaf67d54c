"""Codex as a runtime, with the real program against a scripted model: what it does is in our journal, once."""

from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest

from outrider.core.events import Begun, Bound, Ended, Entry, Input, Reply, Result, Started
from outrider.models.script_server import script, serving
from outrider.models.scripted import Wanted, says
from tests.support.codex import opened

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]


def shell(command: str, **more: object) -> Wanted:
    return Wanted("exec_command", {"cmd": command, **more})


@pytest.mark.behaviour("A4")
async def test_a_turn_has_the_shape_of_a_native_one_and_names_thread_and_turn(tmp_path: Path) -> None:
    async with serving(script(says("hello", reasoning="hm"))) as server, opened(tmp_path, server.url) as agent:
        with anyio.fail_after(60):
            done = await agent.say("hi", session="s")
    assert (done.text, done.outcome, done.steps, done.error, done.cost) == ("hello", "done", 1, "", None)
    assert done.thread
    assert done.turn
    assert done.usage.input > 0


@pytest.mark.behaviour("A3")
async def test_commands_and_patches_are_in_the_journal_with_their_results_in_order(tmp_path: Path) -> None:
    patch = Wanted("apply_patch", raw="*** Begin Patch\n*** Add File: a.txt\n+grüße\n*** End Patch\n", custom=True)
    lines = script(says("looking", shell("echo one; exit 3")), says("", patch), says("done"))
    async with serving(lines) as server, opened(tmp_path, server.url) as agent:
        with anyio.fail_after(60):
            done = await agent.say("go", session="s")
            journal = await agent.journal(await agent.find("s"))
    assert done.text == "done"
    assert (tmp_path / "work" / "a.txt").read_text() == "grüße\n"
    assert shown(journal) == [
        "input go",
        "started codex",
        "bound",
        "bound",
        "reply looking",
        "reply shell",
        "begun",
        "result one\n\n[exit status 3]",
        "reply patch",
        f"result add {tmp_path / 'work' / 'a.txt'}",
        "reply done",
        "ended done",
    ]


def shown(journal: Sequence[Entry]) -> list[str]:
    """Each entry in a few words."""
    return [_shown(entry) for entry in journal]


def _shown(entry: Entry) -> str:
    match entry.body:
        case Input(text=text):
            return f"input {text}"
        case Started(runtime=runtime):
            return f"started {runtime}"
        case Bound():
            return "bound"
        case Reply(text=text, calls=calls):
            return " ".join(["reply", *([text] if text else []), *(call.tool for call in calls)])
        case Begun():
            return "begun"
        case Result(text=text):
            return f"result {text}"
        case Ended(outcome=outcome, reason=reason):
            return f"ended {outcome} {reason}".strip()
        case other:
            return type(other).__name__.lower()
