"""Tests of whole turns over each wire: faults are reported, and the next turn works."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

import outrider
from outrider.app.agent import Agent
from outrider.config.load import load
from outrider.core.events import Begun, Reply, Result
from outrider.testing.scripted_model import ScriptedCall, ScriptedReply, broken_call, call, says
from outrider.testing.scripted_server.script import (
    Cut,
    Empty,
    ErrorStatus,
    Garbage,
    Overflow,
    Script,
    ScriptLine,
    Stall,
    script,
)
from outrider.testing.scripted_server.server import ScriptedServer, open_scripted_server

pytestmark = [pytest.mark.anyio, pytest.mark.promise("L12"), pytest.mark.promise("L7")]

WIRES = ["openai-chat", "openai-responses", "anthropic"]


@asynccontextmanager
async def open_agent(
    folder: Path, wire: str, replies: Script, attempts: int = 2
) -> AsyncGenerator[tuple[Agent, ScriptedServer]]:
    async with open_scripted_server(replies) as server:
        work = anyio.Path(folder / "work")
        await work.mkdir(exist_ok=True)
        await (work / "a.txt").write_text("alpha\n")
        await (work / "b.txt").write_text("beta\n")
        config = load(
            folder / "home",
            {},
            {
                "model.name": f"{wire}:scripted",
                "model.url": server.url,
                "model.key": "not-a-real-key",
                "model.attempts": str(attempts),
                "model.patience": "1",
            },
        )
        async with outrider.open(config=config, workspace=str(work)) as agent:
            yield agent, server


@pytest.mark.parametrize("wire", WIRES)
async def test_text_and_reasoning_arrive_as_deltas_and_as_one_reply(tmp_path: Path, wire: str) -> None:
    async with open_agent(tmp_path, wire, script(says("Hello there, friend", reasoning="I should greet"))) as (
        agent,
        _,
    ):
        deltas: list[str] = []
        turn = await agent.say("hi", session="s", on_event=lambda e: deltas.append(str(getattr(e, "text", ""))))
        journal = await agent.journal(await agent.session("s"))
    assert (turn.text, turn.outcome, turn.steps) == ("Hello there, friend", "done", 1)
    assert "".join(deltas).endswith("Hello there, friend")
    assert turn.usage.output > 0
    assert [r.text for e in journal if isinstance(e.body, Reply) for r in e.body.reasoning] == ["I should greet"]


@pytest.mark.parametrize("wire", WIRES)
async def test_parallel_calls_run_and_their_results_are_sent_back_in_order(tmp_path: Path, wire: str) -> None:
    replies = script(
        says("looking", call("read", path="a.txt"), call("read", path="b.txt"), reasoning="both"),
        says("", call("write", path="c.txt", content="gamma\n")),
        says("alpha, beta and gamma"),
    )
    async with open_agent(tmp_path, wire, replies) as (agent, server):
        turn = await agent.say("read both", session="s")
        journal = [e.body for e in await agent.journal(await agent.session("s"))]
    assert (turn.text, turn.outcome, turn.steps) == ("alpha, beta and gamma", "done", 3)
    assert ["alpha" in b.text or "beta" in b.text for b in journal if isinstance(b, Result)][:2] == [True, True]
    assert sum(isinstance(b, Begun) for b in journal) == 1
    assert (tmp_path / "work" / "c.txt").read_text() == "gamma\n"
    sent = str(server.requests[-1].body)
    assert sent.index("alpha") < sent.index("beta") < sent.index("c.txt")


FAILING: list[tuple[str, list[ScriptLine], str]] = [
    ("401", [ErrorStatus(401, "bad key")], "key"),
    ("404", [ErrorStatus(404, "no such model")], "scripted"),
    ("400", [ErrorStatus(400, "you sent nonsense")], "nonsense"),
    ("429", [ErrorStatus(429, "slow down", 0.01)] * 2, "429"),
    ("500", [ErrorStatus(500, "oops")] * 2, "500"),
    ("cut", [Cut(90)] * 2, ""),
    ("garbage", [Garbage()] * 2, ""),
    ("stall before headers", [Stall("headers")] * 2, "nothing for 1 s"),
    ("stall in the stream", [Stall("stream")] * 2, "nothing for 1 s"),
    ("empty", [Empty()] * 2, "empty"),
    ("overflow", [Overflow()] * 4, "exceeds the model's context window"),
]


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(("faults", "message"), [f[1:] for f in FAILING], ids=[f[0] for f in FAILING])
async def test_a_failing_provider_ends_the_turn_with_a_plain_error_and_the_next_turn_works(
    tmp_path: Path, wire: str, faults: list[ScriptLine], message: str
) -> None:
    async with open_agent(tmp_path, wire, script([*faults, says("here again")])) as (agent, _):
        with anyio.fail_after(60):
            failed = await agent.say("hi", session="s")
            while (turn := await agent.say("hi again", session="s")).outcome == "failed":
                assert turn.error  # a fault that is used up in more than one turn
    assert (failed.outcome, failed.text) == ("failed", "")
    assert message in failed.error
    assert "not-a-real-key" not in failed.error
    assert "\n" not in failed.error
    assert (turn.outcome, turn.text) == ("done", "here again")


PASSING: list[tuple[str, ScriptLine]] = [
    ("429", ErrorStatus(429, "slow down", 0.01)),
    ("500", ErrorStatus(500, "oops")),
    ("529", ErrorStatus(529, "overloaded")),
    ("cut", Cut(150)),
    ("garbage", Garbage()),
    ("stall", Stall("stream")),
    ("empty", Empty()),
]


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("fault", [p[1] for p in PASSING], ids=[p[0] for p in PASSING])
async def test_a_temporary_fault_is_retried_without_a_trace(tmp_path: Path, wire: str, fault: ScriptLine) -> None:
    replies = script([fault, says("one", call("read", path="a.txt"))], [fault, says("two")])
    async with open_agent(tmp_path, wire, replies) as (agent, _):
        with anyio.fail_after(60):
            turn = await agent.say("hi", session="s")
        replies = [e.body.text for e in await agent.journal(await agent.session("s")) if isinstance(e.body, Reply)]
    assert (turn.outcome, turn.text, replies) == ("done", "two", ["one", "two"])


@pytest.mark.parametrize("wire", WIRES)
async def test_a_turn_that_fails_between_calls_leaves_a_journal_that_the_provider_accepts(
    tmp_path: Path, wire: str
) -> None:
    replies = script(says("", call("list"), call("read", path="a.txt")), [ErrorStatus(400, "no"), says("all well")])
    async with open_agent(tmp_path, wire, replies) as (agent, _):
        failed = await agent.say("look", session="s")
        turn = await agent.say("and now?", session="s")
    assert (failed.outcome, turn.outcome, turn.text) == ("failed", "done", "all well")


@pytest.mark.parametrize("wire", WIRES)
async def test_broken_arguments_and_unknown_tools_get_a_result_and_the_turn_continues(
    tmp_path: Path, wire: str
) -> None:
    calls: tuple[ScriptedCall, ...] = (broken_call("read", '{"path": "a.t'), call("teleport", to="Mars"))
    async with open_agent(tmp_path, wire, script(ScriptedReply("", calls), says("I see"))) as (agent, server):
        turn = await agent.say("go", session="s")
    assert (turn.outcome, turn.text) == ("done", "I see")
    sent = str(server.requests[-1].body)
    assert "not a JSON object" in sent
    assert "there is no tool" in sent


@pytest.mark.parametrize("wire", WIRES)
async def test_an_image_reaches_the_model(tmp_path: Path, wire: str) -> None:
    dot = bytes.fromhex(
        "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c49444154789c63f8cfc0000003010100c9fe92"
        "ef0000000049454e44ae426082"
    )
    async with open_agent(tmp_path, wire, script(says("a dot"))) as (agent, server):
        turn = await agent.say("what is this?", session="s", images=[dot])
    assert turn.text == "a dot"
    assert "iVBORw0KGgo" in str(server.requests[-1].body)


@pytest.mark.parametrize("first", WIRES)
@pytest.mark.parametrize("second", WIRES)
async def test_a_session_continues_with_another_provider(tmp_path: Path, first: str, second: str) -> None:
    replies = script(says("one", call("read", path="a.txt"), reasoning="hm"), says("two"), says("three"))
    async with open_agent(tmp_path, first, replies) as (agent, _):
        await agent.say("first", session="s")
    async with open_agent(tmp_path, second, replies) as (agent, server):
        turn = await agent.say("second", session="s")
    assert (turn.outcome, turn.text) == ("done", "three")
    assert "alpha" in str(server.requests[-1].body)
