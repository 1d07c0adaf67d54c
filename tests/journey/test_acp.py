"""Turns in an ACP agent: recorded, approved and stopped."""

from pathlib import Path
from typing import Any

import anyio
import pytest
from acp import schema

import outrider
from outrider.config.load import load
from outrider.core.events import Answered, Asked, Begun, Bound, Ended, Input, Reply, Result, Started
from outrider.core.types import Call, Usage
from outrider.runtimes.acp.errors import STOP_REASONS
from outrider.runtimes.external.recorder import external_call_id
from outrider.testing.scripted_model import ScriptedModel, says
from tests.support.acp import PIPE, TERMINAL, World, deltas, do, finished_journal, post, text, tool
from tests.support.questions import DENIED, asked

pytestmark = pytest.mark.anyio
RM = {"toolCallId": "c1", "title": "rm x", "kind": "execute", "rawInput": {"command": "rm x"}}
QUESTION = (
    "Allow this command without a sandbox, in {}?\n| rm x\n"
    "A yes for the session or the workspace covers every later command there that needs the same. "
    "Without a sandbox, a command can do all that the user who runs Outrider can."
)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_the_messages_and_calls_of_an_agent_are_recorded_as_a_turn(world: World) -> None:
    words = do(
        ["think", "hm"],
        ["say", "I look"],
        ["say", " first."],
        tool("c1", "pending", kind="execute", rawInput={}),
        tool("c1", "in_progress", rawInput={"command": "ls"}),
        tool("c1", "completed", content=text("a.txt")),
        ["update", {"sessionUpdate": "who_knows", "x": 1}],
        ["say", "One file"],
        ["say", ", a.txt"],
    )
    async with world.open_agent() as agent:
        await post(agent, words)
        journal = await finished_journal(agent)
    run = external_call_id("acp", "s0/prompt-1.2/c1")
    assert journal == [
        Input(words, person="owner", address=TERMINAL),
        Started("acp"),
        Bound("acp", "s0", "prompt-1.2", 1),
        Reply("I look first.", 1),
        Reply("", 1, (Call(run, "shell", {"command": "ls"}),)),
        Begun(run),
        Result(run, "a.txt", details="Run c1"),
        Bound("acp", "s0", saw=1),
        Reply("One file, a.txt", 1, usage=Usage(8, 5, 1)),
        Ended("done", 1),
    ]
    assert world.received("session/new") == [{"cwd": str(world.work), "mcpServers": []}]


@pytest.mark.parametrize(
    ("answer", "option", "result"),
    [("once", "2", "gone"), ("session", "2", "gone"), ("workspace", "2", "gone"), ("no", "3", DENIED)],
)
async def test_a_person_is_asked_and_the_option_of_that_kind_is_chosen(
    world: World, answer: str, option: str, result: str
) -> None:
    """Without a call before the request, and whatever the agent reports of the call afterwards."""
    words = do(["ask", RM], tool("c1", "completed", content=text("gone")), ["say", "ok"])
    async with world.open_agent() as agent:
        session = await post(agent, words)
        question = await asked(agent, session)
        assert question.question == QUESTION.format(world.work)
        assert await agent.answer(session, question, answer)
        journal = await finished_journal(agent)
    assert world.effects() == [{"outcome": {"outcome": "selected", "optionId": option}}]
    assert [body.text for body in journal if isinstance(body, Result)] == [result]
    assert len([body for body in journal if isinstance(body, Begun)]) == (answer != "no")
    assert journal[-2:] == [Reply("ok", 1, usage=Usage(8, 5, 1)), Ended("done", 1)]


async def test_a_question_that_nobody_can_answer_is_denied(world: World) -> None:
    async with world.open_agent() as agent:
        await post(agent, do(["ask", RM], ["say", "then not"]), PIPE)
        journal = await finished_journal(agent)
    assert world.effects() == [{"outcome": {"outcome": "selected", "optionId": "3"}}]
    assert [type(body) for body in journal] == [
        Input,
        Started,
        Bound,
        Reply,
        Asked,
        Answered,
        Result,
        Bound,
        Reply,
        Ended,
    ]


async def test_a_yes_for_once_never_becomes_a_yes_for_always(world: World) -> None:
    options = [{"optionId": "a", "kind": "allow_always"}, {"optionId": "r", "kind": "reject_always"}]
    async with world.open_agent() as agent:
        session = await post(agent, do(["ask", RM, options], ["say", "well"]))
        await agent.answer(session, await asked(agent, session), "once")
        journal = await finished_journal(agent)
    assert world.effects() == [{"outcome": {"outcome": "selected", "optionId": "r"}}]
    assert "has no option to allow it only once" in next(b.text for b in journal if isinstance(b, Result))


async def test_a_yes_for_the_session_is_kept_by_us_and_never_by_the_agent(world: World) -> None:
    other = {**RM, "toolCallId": "c2", "rawInput": {"command": "rm y"}}
    async with world.open_agent() as agent:
        session = await post(agent, do(["ask", RM], ["ask", other], ["say", "done"]))
        await agent.answer(session, await asked(agent, session), "session")
        journal = await finished_journal(agent)
        granted = [(grant.scope, grant.applies_to) for grant in await agent.permissions()]
    assert [effect["outcome"]["optionId"] for effect in world.effects()] == ["2", "2"]
    assert len([body for body in journal if isinstance(body, Asked)]) == 1
    assert granted == [("session", session.id)]


async def test_two_questions_are_asked_one_after_the_other(world: World) -> None:
    other = {**RM, "toolCallId": "c2", "rawInput": {"command": "rm y"}}
    async with world.open_agent() as agent:
        session = await post(agent, do(["ask", RM], ["ask", other], ["say", "done"]))
        await agent.answer(session, await asked(agent, session), "once")
        await agent.answer(session, await asked(agent, session, 2), "no")
        await finished_journal(agent)
    chosen = [effect["outcome"]["optionId"] for effect in world.effects()]
    assert chosen == ["2", "3"]


async def test_a_stopped_turn_is_cancelled_in_the_agent_which_keeps_running(world: World) -> None:
    async with world.open_agent() as agent:
        session = await post(agent, do(["say", "half a"], ["hang"]))
        await deltas(agent, session, "half a")
        await agent.stop(session)
        journal = await finished_journal(agent)
        assert journal[-1] == Ended("interrupted", 3, "stopped", "half a")
        await post(agent, do(["say", "back"]))
        assert (await finished_journal(agent))[-2] == Reply("back", 5, usage=Usage(8, 5, 1))
    assert world.received("session/cancel") == [{"sessionId": "s0"}]
    assert len(world.received("initialize")) == 1
    assert world.prompts()[1] == do(["say", "back"])


async def test_a_pending_permission_request_is_cancelled_when_the_turn_is_stopped(world: World) -> None:
    async with world.open_agent() as agent:
        session = await post(agent, do(["ask", RM], ["hang"]))
        await asked(agent, session)
        await agent.stop(session)
        await world.has("effects")
    assert world.effects() == [{"outcome": {"outcome": "cancelled"}}]


async def test_an_agent_that_does_not_stop_is_ended_and_the_next_turn_starts_another(world: World) -> None:
    async with world.open_agent() as agent:
        session = await post(agent, do(["deaf"]))
        await world.has("effects")
        await agent.stop(session)
        await finished_journal(agent)
        await post(agent, do(["say", "again"]))
        assert [body.text for body in await finished_journal(agent) if isinstance(body, Reply)] == ["again"]
    assert len(world.received("initialize")) == 2
    assert [params["sessionId"] for params in world.received("session/load")] == ["s0"]


async def test_a_message_during_a_turn_is_its_next_prompt(world: World) -> None:
    first = do(["effect", "begun"], ["ask", RM], ["say", "one"])
    async with world.open_agent() as agent:
        session = await post(agent, first)
        question = await asked(agent, session)
        await post(agent, do(["say", "two"]))
        await agent.answer(session, question, "once")
        journal = await finished_journal(agent)
    assert world.prompts() == [first, do(["say", "two"])]
    assert [body.text for body in journal if isinstance(body, Reply) and body.text] == ["one", "two"]
    assert len([body for body in journal if isinstance(body, Ended)]) == 1


async def test_sessions_in_one_folder_share_an_agent_and_get_only_their_own_messages(world: World) -> None:
    async with world.open_agent() as agent:
        for name in ("a", "b"):
            await post(agent, do(["say", f"{name} begins. "], ["until", "go"], ["say", f"{name} ends."]), name=name)
        await world.has("received", 5)
        (world.agents / "go").touch()
        for name in ("a", "b"):
            replies = [body.text for body in await finished_journal(agent, name) if isinstance(body, Reply)]
            assert replies == [f"{name} begins. {name} ends."]
    assert (len(world.received("initialize")), len(world.received("session/new"))) == (1, 2)


@pytest.mark.parametrize(
    ("ids", "reply"),
    [([], "ab"), (["m", "m"], "ab"), (["m", "n"], "a\n\nb")],
)
async def test_the_chunks_of_a_message_are_joined_with_any_ids(world: World, ids: list[str], reply: str) -> None:
    async with world.open_agent() as agent:
        await post(agent, do(["say", "a", *ids[:1]], ["say", "b", *ids[1:]]))
        assert [body.text for body in await finished_journal(agent) if isinstance(body, Reply)] == [reply]


async def test_a_line_of_five_megabytes_is_read(world: World) -> None:
    async with world.open_agent() as agent:
        await post(agent, do(["long", 5_000_000], ["say", " end"]))
        (reply,) = [body.text for body in await finished_journal(agent) if isinstance(body, Reply)]
    assert reply.endswith("x end")
    assert "[… 4,000,004 of 5,000,004 characters left out …]" in reply


@pytest.mark.parametrize("reason", ["max_tokens", "max_turn_requests", "refusal"])
async def test_the_reason_of_an_early_stop_is_recorded(world: World, reason: str) -> None:
    async with world.open_agent() as agent:
        await post(agent, do(["say", "so far"], ["stop", reason]))
        journal = await finished_journal(agent)
    assert journal[-3:] == [Reply("so far", 1), Reply("", 1, cut=STOP_REASONS[reason]), Ended("done", 1)]


async def test_no_file_or_terminal_access_is_offered(world: World) -> None:
    async with world.open_agent() as agent:
        await post(agent, do(["request", "fs/read_text_file"], ["request", "terminal/create"], ["say", "ok"]))
        await finished_journal(agent)
        await world.has("received", 5)
    offered = world.received("initialize")[0]["clientCapabilities"]
    assert offered == {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False}
    assert [answer["code"] for answer in world.received("answer")] == [-32601, -32601]


async def test_an_agent_gets_the_history_that_it_has_not_seen(world: World) -> None:
    config = load(world.home, {}, {"acp.command": world.command(), "runtime.name": "native"})
    model = ScriptedModel(says("Paris it is"), says("[the agent's]"), says("You said Rome"))
    with anyio.fail_after(60):
        async with outrider.open(config=config, model=model, workspace=world.work) as agent:
            session = await post(agent, "we go to Paris")
            await finished_journal(agent)
            await agent.change(session, {"runtime": "acp"})
            await post(agent, do(["say", "Rome rather"], before="where? "))
            await finished_journal(agent)
            await agent.change(session, {"runtime": "native"})
            await post(agent, "where now?")
            await finished_journal(agent)
            await agent.change(session, {"runtime": "acp"})
            await post(agent, do(["say", "good"], before="last. "))
            await finished_journal(agent)
    first, second = world.prompts()
    assert "Person: we go to Paris\nAgent: Paris it is\n" in first
    assert first.endswith('where? do [["say", "Rome rather"]]')
    assert "Person: where now?\nAgent: You said Rome\n" in second
    assert "Paris" not in second


async def test_an_agent_gets_the_configured_variables_and_the_usual_ones(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_KEY", "for the agent")
    monkeypatch.setenv("OTHER_KEY", "for nobody")
    async with world.open_agent(acp_env="AGENT_KEY") as agent:
        await post(agent, do(["environ"], ["say", "ok"]))
        await finished_journal(agent)
    (names,) = world.effects()
    assert {"AGENT_KEY", "PATH", "OUTRIDER_CHILD"} <= set(names)
    assert "OTHER_KEY" not in names


async def test_every_message_to_an_agent_matches_the_schema_of_the_protocols_own_library(world: World) -> None:
    async with world.open_agent() as agent:
        session = await post(agent, do(["ask", RM], ["hang"]))
        await agent.answer(session, await asked(agent, session), "once")
        await world.has("effects")
        await agent.stop(session)
        await finished_journal(agent)
    async with world.open_agent() as agent:
        await post(agent, do(["say", "again"]))
        await finished_journal(agent)
    kinds: dict[str, Any] = {
        "initialize": schema.InitializeRequest,
        "session/new": schema.NewSessionRequest,
        "session/load": schema.LoadSessionRequest,
        "session/prompt": schema.PromptRequest,
        "session/cancel": schema.CancelNotification,
        "answer": schema.RequestPermissionResponse,
    }
    assert {line["method"] for line in world.lines("received")} == set(kinds)
    for line in world.lines("received"):
        kinds[line["method"]].model_validate(line["params"])
