"""Claude Code's ACP agent from npm with a scripted model: real turns, real commands, real kills."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

import outrider
from outrider.config.load import load
from outrider.config.schema import Config
from outrider.core.events import Answered, Asked, Begun, Bound, Ended, Input, Reply, Result, Started
from outrider.core.prompt import UNKNOWN
from outrider.runtimes.external.process_pool import PoolKey, marker_of
from outrider.testing.scripted_model import call, says
from outrider.testing.scripted_server.script import Script, ScriptRule, Stall
from outrider.testing.scripted_server.server import ScriptedServer
from tests.journey.support import Person
from tests.support.acp import deltas, finished_journal, post
from tests.support.npm import installed
from tests.support.questions import DENIED, asked

pytestmark = pytest.mark.timeout(240)  # the first time, 289 MB are installed
RING = "echo rang >> bell; echo rang"
SCRIPT = Script(
    replies=((says("all is well"),),),
    rules=(
        ScriptRule("was cut off", ((says("I see that it was cut off"),),)),
        ScriptRule("ring it", ((says("I ring.", call("Bash", command=RING, description="ring")),), (says("it rang"),))),
        ScriptRule("sleep", ((says("", call("Bash", command="touch asleep; sleep 600", description="sleep")),),)),
        ScriptRule("never end", ((Stall("stream"), says("one two three four five six seven")),)),
        ScriptRule("still there", ((says("still here"),),)),
    ),
)
NAMES = "ANTHROPIC_BASE_URL,ANTHROPIC_API_KEY,CLAUDE_CONFIG_DIR,CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"


@pytest.fixture
def model() -> Iterator[ScriptedServer]:
    with ScriptedServer(SCRIPT) as server:
        yield server


@pytest.fixture
def person(tmp_path: Path, model: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> Person:
    """A person with this agent, whose model is scripted."""
    program = installed("acp") / "node_modules" / ".bin" / "claude-agent-acp"
    person = Person(tmp_path)
    values = (model.root, "k-1234567890", str(person.folder / ".claude"), "1")
    person.environ |= {"OUTRIDER_RUNTIME": "acp", "OUTRIDER_ACP_COMMAND": str(program), "OUTRIDER_ACP_ENV": NAMES}
    person.environ |= dict(zip(NAMES.split(","), values, strict=True))
    person.environ["PATH"] = f"{person.environ['PATH']}{os.pathsep}{os.environ['PATH']}"
    for name, value in person.environ.items():
        if not name.startswith("OUTRIDER_"):
            monkeypatch.setenv(name, value)
    return person


def config(person: Person) -> Config:
    return load(person.home, person.environ)


def pids(person: Person) -> list[int]:
    """The processes of the agent: itself first, then what it started."""
    key = PoolKey("owner", str(person.project))
    variable = f"OUTRIDER_CHILD={marker_of('acp', person.home, key)}".encode()
    processes: list[tuple[int, int]] = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if variable in (folder / "environ").read_bytes().split(b"\0"):
                started = int((folder / "stat").read_bytes().rpartition(b") ")[2].split()[19])
                processes.append((started, int(folder.name)))
        except OSError:
            continue
    return [pid for _, pid in sorted(processes)]  # A later process may have a smaller number.


@pytest.mark.anyio
async def test_a_message_an_approved_command_and_a_stop(person: Person, model: ScriptedServer) -> None:
    with anyio.fail_after(200):
        async with outrider.open(config=config(person), workspace=person.project) as agent:
            session = await post(agent, "how are things?")
            journal = await finished_journal(agent)
            assert [type(body) for body in journal] == [Input, Started, Bound, Bound, Reply, Ended]
            assert [body.text for body in journal if isinstance(body, Reply)] == ["all is well"]
            await post(agent, "ring it")
            question = await asked(agent, session)
            assert question.question.splitlines()[1] == f"| {RING}"
            await agent.answer(session, question, "once")
            journal = (await finished_journal(agent))[6:]
            kinds: list[Any] = [
                Input,
                Started,
                Bound,
                Reply,
                Reply,
                Asked,
                Answered,
                Begun,
                Result,
                Bound,
                Reply,
                Ended,
            ]
            assert [type(body) for body in journal] == kinds
            assert [body.text for body in journal if isinstance(body, Reply)] == ["I ring.", "", "it rang"]
            await post(agent, "ring it again")
            await agent.answer(session, await asked(agent, session, 2), "no")
            assert [body.text for body in await finished_journal(agent) if isinstance(body, Result)][1:] == [DENIED]
            await post(agent, "never end")
            await deltas(agent, session, "one")
            await agent.stop(session)
            await post(agent, "still there?")
            after = await finished_journal(agent)
            assert [body.outcome for body in after if isinstance(body, Ended)][-2:] == ["interrupted", "done"]
            assert [body.text for body in after if isinstance(body, Reply)][-1] == "still here"
            assert len({body.thread for body in after if isinstance(body, Bound)}) == 1
    assert (person.project / "bell").read_text() == "rang\n"
    assert pids(person) == []


@pytest.mark.anyio
async def test_an_agent_that_is_killed_during_a_command_continues_in_the_next_process(person: Person) -> None:
    with anyio.fail_after(200):
        async with outrider.open(config=config(person), workspace=person.project) as agent:
            session = await post(agent, "how are things?")
            await finished_journal(agent)
            await post(agent, "sleep")
            await agent.answer(session, await asked(agent, session), "once")
            while not (person.project / "asleep").exists():
                await anyio.sleep(0.05)
            os.kill(pids(person)[0], signal.SIGKILL)
            journal = await finished_journal(agent)
    assert [body.text for body in journal if isinstance(body, Result)] == [UNKNOWN]
    assert [body.text for body in journal if isinstance(body, Reply)][-1] == "I see that it was cut off"
    assert len({body.thread for body in journal if isinstance(body, Bound)}) == 1
    assert pids(person) == []


@pytest.mark.promise("L3")
@pytest.mark.promise("L4")
@pytest.mark.parametrize("point", ["call_intent_recorded", "result_not_recorded", "reply_not_recorded:2"])
def test_a_turn_continues_after_a_kill_of_outrider_and_its_command_runs_once(person: Person, point: str) -> None:
    person.home.mkdir(mode=0o700)
    (person.home / "config.toml").write_text('[[rules]]\nverdict = "allow"\ntool = "shell"\nneeds = ["host"]\n')
    first = person.types("run", "--session", "s", "how are things?")
    assert (first.code, first.out) == (0, "all is well\n"), first.err
    words = ("run", "--session", "s", "--key", "k", "ring it")
    assert person.types(*words, environ={"OUTRIDER_FAIL": point}).code == -9
    again = person.types(*words)
    assert (again.code, again.out) == (0, "I see that it was cut off\n"), again.err
    rung = (person.project / "bell").read_text() if (person.project / "bell").exists() else ""
    assert rung.count("rang") <= 1
    assert pids(person) == []
