"""kill -9 on either side of a turn that another Outrider runs: it is one input there, its effects happen once, and the
journal here has all of it once.

Effects are counted by a file on the other side.
"""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

import outrider
from outrider.config.load import load
from outrider.core.events import Ended, Entry, Input, Reply, Result
from outrider.testing.scripted_model import call, says
from outrider.testing.scripted_server.script import Stall, script
from outrider.testing.scripted_server.server import ScriptedServer
from tests.journey.support import Person
from tests.support.life import killed_at, start_life
from tests.support.remote import FarOutriderHome, far_outrider
from tests.support.up import up

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(180), pytest.mark.promise("L3"), pytest.mark.promise("L4")]
POINTS = [
    "turn_started",
    "call_intent_recorded",
    "calls_not_recorded",
    "result_not_recorded",
    "mid_reply:2",
    "reply_not_recorded",
    "reply_recorded",
]
"""`call_intent_recorded` is here when the other side has the input, and this is not recorded."""
WORK = call("write", path="did", content="x\n")
SCRIPT = script(says("I write.", WORK), says("All done now."))


def bodies(entries: list[Entry], kind: type[Any]) -> list[Any]:
    return [entry.body for entry in entries if isinstance(entry.body, kind)]


@pytest.fixture
def far(tmp_path: Path) -> Iterator[FarOutriderHome]:
    with ScriptedServer(SCRIPT) as server:
        settings = {"model.name": "openai-chat:scripted", "model.url": server.url, "model.key": "none"}
        with far_outrider(tmp_path / "far", settings) as home:
            yield home


@pytest.mark.behaviour("C10")
@pytest.mark.parametrize("point", POINTS)
async def test_a_turn_that_is_killed_here_is_one_input_there_and_ends_once(
    tmp_path: Path, far: FarOutriderHome, point: str
) -> None:
    settings = far.settings()
    await anyio.to_thread.run_sync(killed_at, point, tmp_path, settings)
    with anyio.fail_after(90):
        async with outrider.open(config=load(tmp_path / "home", {}, settings)) as agent:
            await agent.resume_all()
            await agent.wait(await agent.find("s"))
            entries = list(await agent.journal(await agent.find("s")))
    theirs = far.journals()
    assert (len(theirs), [one.text for one in bodies(theirs[0], Input)], far.effects()) == (1, ["go"], 1)
    assert [one.text for one in bodies(entries, Reply)] == ["I write.", "All done now."]
    assert ([one.outcome for one in bodies(entries, Ended)], len(bodies(entries, Result))) == (["done"], 1)


@pytest.mark.behaviour("C10")
def test_a_turn_goes_on_when_the_other_side_is_killed_and_started_again(tmp_path: Path) -> None:
    with ScriptedServer(script(says("I write.", WORK), [Stall("stream"), says("All done now.")])) as server:
        person = Person(tmp_path)
        person.uses(server.url)
        with up(person) as running:
            settings = {"remote.url": running.url, "remote.key": running.key, "model.name": "nobody:knows"}
            life = start_life(tmp_path, settings)
            try:
                server.wait(2)
                running.ends(signal.SIGKILL)
                with up(person, "--port", str(running.port)):
                    _, error = life.communicate(timeout=90)
            finally:
                life.kill()
                life.wait()
    assert life.returncode == 0, error.decode()

    async def read() -> list[Entry]:
        async with outrider.open(config=load(tmp_path / "home", {}, settings)) as agent:
            return list(await agent.journal(await agent.find("s")))

    entries = anyio.run(read)
    assert [one.text for one in bodies(entries, Reply)] == ["I write.", "All done now."]
    assert [one.outcome for one in bodies(entries, Ended)] == ["done"]
