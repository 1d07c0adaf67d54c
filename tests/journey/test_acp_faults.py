"""ACP agents that die or fall silent, and kills of Outrider: the turn resumes, or fails with a reason."""

from pathlib import Path
from typing import Any

import pytest

from outrider.core.events import Bound, Ended, Reply, Result
from outrider.core.prompt import UNKNOWN
from outrider.runtimes.acp.errors import CANNOT_RESUME, USE_NATIVE_HINT
from tests.journey.support import Person, Ran
from tests.support.acp import World, deltas, do, finished_journal, post, text, tool
from tests.support.questions import asked

RM = {"toolCallId": "c1", "title": "rm x", "kind": "execute", "rawInput": {"command": "rm x"}}
RUNS = [
    tool("c1", "pending", kind="execute", rawInput={"command": "ring"}),
    tool("c1", "in_progress"),
]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def reason(journal: list[Any]) -> str:
    ended = journal[-1]
    assert isinstance(ended, Ended)
    assert ended.outcome == "failed"
    return ended.reason


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("dies-at-initialize", f"python ended with exit status 4: it was all too much; {USE_NATIVE_HINT}"),
        ("dies-at-session/new", f"python ended with exit status 4: it was all too much; {USE_NATIVE_HINT}"),
        ("dies-at-session/prompt", f"python ended with exit status 4: it was all too much; {USE_NATIVE_HINT}"),
        (
            "login",
            f"scripted requires a login: Log in on the web (run `scripted login`). "
            f"Then send your message again; {USE_NATIVE_HINT}",
        ),
        ("version-2", f"python speaks version 2 of ACP, and Outrider speaks version 1; {USE_NATIVE_HINT}"),
    ],
)
async def test_an_agent_that_cannot_work_fails_the_turn_with_its_own_error(
    world: World, word: str, message: str
) -> None:
    async with world.open_agent(word) as agent:
        await post(agent, do(["say", "never"]))
        assert reason(await finished_journal(agent)) == message


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("", "no agent is set: `outrider config set acp.command"),
        ("/nowhere/agent --acp", "/nowhere/agent was not started: No such file or directory"),
        ("agent 'half", "acp.command cannot be parsed: No closing quotation"),
    ],
)
async def test_a_command_that_cannot_be_started_fails_the_turn_with_a_reason(
    world: World, command: str, message: str
) -> None:
    async with world.open_agent(acp_command=command) as agent:
        await post(agent, "hello")
        assert reason(await finished_journal(agent)).startswith(message)


@pytest.mark.anyio
async def test_an_error_fails_the_turn_with_its_text_and_keeps_what_was_done(world: World) -> None:
    words = do(["say", "half"], *RUNS, ["error", -32603, "Internal error", {"details": "out of memory"}])
    async with world.open_agent() as agent:
        await post(agent, words)
        journal = await finished_journal(agent)
        await post(agent, do(["say", "better"]))
        after = await finished_journal(agent)
    assert reason(journal) == f'scripted: Internal error (-32603): {{"details": "out of memory"}}; {USE_NATIVE_HINT}'
    assert [body.text for body in journal if isinstance(body, Reply | Result) and body.text] == ["half", UNKNOWN]
    assert isinstance(after[-1], Ended)
    assert after[-1].outcome == "done"
    assert len(world.received("session/new")) == 1


@pytest.mark.anyio
@pytest.mark.parametrize("word", ["", "resumes"])
async def test_an_agent_that_dies_during_a_turn_is_restarted_and_continues(world: World, word: str) -> None:
    words = do(*RUNS, ["die", "once"], tool("c1", "completed", content=text("rang")), ["say", "all done"])
    async with world.open_agent(word) as agent:
        session = await post(agent, words)
        notes = [delta.text for delta in await deltas(agent, session, "it is restarted") if delta.kind == "reset"]
        journal = await finished_journal(agent)
    assert notes == ["python ended with exit status 3; it is restarted and continues"]
    assert [body.text for body in journal if isinstance(body, Result)] == [UNKNOWN, "rang"]
    assert isinstance(journal[-1], Ended)
    assert journal[-1].outcome == "done"
    again = world.prompts()[1]
    assert again.startswith("[Your work on the request below was cut off.")
    assert '- shell {"command":"ring"}: it may or may not have happened]' in again
    assert again.endswith(words)


@pytest.mark.anyio
async def test_an_agent_that_dies_every_time_is_given_up_after_the_second(world: World) -> None:
    async with world.open_agent() as agent:
        await post(agent, do(["say", "well"], ["die"]))
        journal = await finished_journal(agent)
    assert reason(journal) == f"python ended with exit status 3: something broke inside; {USE_NATIVE_HINT}"
    assert [body.text for body in journal if isinstance(body, Reply)] == ["well"]
    assert len(world.prompts()) == 2


@pytest.mark.anyio
async def test_the_outcome_of_an_interrupted_call_is_taken_from_the_replay_of_the_next_process(world: World) -> None:
    """It ended a call, stored that, and died before it could report it."""
    ended = tool("c1", "completed", content=text("rang once"))[1]
    async with world.open_agent() as agent:
        await post(agent, do(*RUNS, ["past", ended], ["die", "once"], ["say", "I see"]))
        journal = await finished_journal(agent)
    results = [body.text for body in journal if isinstance(body, Result)]
    assert results == ["rang once", "the agent did not report a result"]
    assert "may or may not" not in world.prompts()[1]


@pytest.mark.anyio
async def test_an_agent_that_cannot_resume_fails_the_interrupted_turn_and_begins_a_new_session(world: World) -> None:
    async with world.open_agent("forgets") as agent:
        await post(agent, do(["say", "half"], *RUNS, ["die", "once"], ["say", "never"]))
        journal = await finished_journal(agent)
        session = await post(agent, do(["say", "once more"]))
        notes = [delta.text for delta in await deltas(agent, session, "receives what") if delta.kind == "note"]
        after = await finished_journal(agent)
    assert reason(journal) == f"python ended with exit status 3: something broke inside; {USE_NATIVE_HINT}"
    assert [body.text for body in journal if isinstance(body, Reply | Result) and body.text] == ["half", UNKNOWN]
    assert notes == [
        "scripted cannot resume a session of an earlier process. A new one starts",
        "scripted receives what was said and done in this session before",
    ]
    assert [body.thread for body in after if isinstance(body, Bound)] == ["s0", "s1", "s1"]
    assert "Agent: half\n" in world.prompts()[1]


@pytest.mark.anyio
async def test_a_session_that_the_agent_lost_is_replaced_by_a_new_one_with_the_history(world: World) -> None:
    async with world.open_agent() as agent:
        await post(agent, do(["say", "first"]))
        await finished_journal(agent)
    (world.agents / "s0.past").rename(world.agents / "other.past")
    async with world.open_agent() as agent:
        await post(agent, do(["say", "second"]))
        journal = await finished_journal(agent)
    assert [body.thread for body in journal if isinstance(body, Bound)] == ["s0", "s0", "s1", "s1"]
    assert "Agent: first\n" in world.prompts()[1]


@pytest.mark.anyio
async def test_a_silent_agent_that_answers_a_ping_continues(world: World) -> None:
    async with world.open_agent(acp_quiet="1") as agent:
        session = await post(agent, do(["hang"]))
        notes = await deltas(agent, session, "it is running and answers")
        assert notes[-1].text == "scripted has been silent for 1 s; it is running and answers"
        await agent.stop(session)
        await finished_journal(agent)
    assert len(world.received("_outrider/alive")) >= 1


@pytest.mark.anyio
async def test_a_silent_agent_that_does_not_answer_a_ping_is_ended(world: World) -> None:
    async with world.open_agent(acp_quiet="1") as agent:
        await post(agent, do(["say", "so far"], ["deaf"]))
        journal = await finished_journal(agent)
    assert reason(journal).startswith("scripted was silent for 1 s and does not answer, so it was ended (acp.quiet)")
    assert [body.text for body in journal if isinstance(body, Reply)] == ["so far"]


@pytest.mark.anyio
@pytest.mark.parametrize(("answer", "message"), [("once", "has allowed it since"), ("no", "did not allow it")])
async def test_a_question_survives_a_restart_and_its_answer_applies_to_the_same_command_once(
    world: World, answer: str, message: str
) -> None:
    words = do(["ask", RM], ["say", "done"])
    async with world.open_agent() as agent:
        await asked(agent, await post(agent, words))
    async with world.open_agent() as agent:
        session = await agent.session("s")
        await agent.answer(session, await asked(agent, session), answer)
        journal = await finished_journal(agent)
    assert world.effects()[-1] == {"outcome": {"outcome": "selected", "optionId": "2" if answer == "once" else "3"}}
    assert f'- shell {{"command":"rm x"}}: the person {message}' in world.prompts()[1]
    assert isinstance(journal[-1], Ended)
    assert journal[-1].outcome == "done"


class Owner(Person):
    """A person whose turns run in the scripted agent."""

    def __init__(self, folder: Path, *words: str) -> None:
        super().__init__(folder)
        self.world = World(folder)
        self.environ |= {"OUTRIDER_RUNTIME": "acp", "OUTRIDER_ACP_COMMAND": self.world.command(*words)}

    def asks(self, words: str, fail: str = "") -> Ran:
        return self.types("run", "--session", "s", "--key", "k", words, environ={"OUTRIDER_FAIL": fail})


RING = do(
    ["say", "I ring"], *RUNS, ["effect", "rang"], tool("c1", "completed", content=text("rang")), ["say", "all done"]
)


@pytest.mark.promise("L3")
@pytest.mark.promise("L4")
@pytest.mark.parametrize(
    "point",
    [
        "turn_started",
        "mid_reply",
        "calls_not_recorded",
        "call_intent_recorded",
        "result_not_recorded",
        "result_recorded",
        "reply_not_recorded",
        "reply_not_recorded:2",
        "reply_recorded",
    ],
)
def test_a_turn_continues_after_a_kill(tmp_path: Path, point: str) -> None:
    owner = Owner(tmp_path)
    assert owner.asks(RING, point).code == -9
    again = owner.asks(RING)
    assert (again.code, again.out) == (0, "all done\n"), again.err
    assert owner.world.effects() == ["rang"]
    prompts = owner.world.prompts()
    if len(prompts) == 2:
        assert prompts[1].startswith("[Your work on the request below was cut off.")
    assert len(prompts) == (1 if point in ("turn_started", "reply_recorded") else 2)


@pytest.mark.promise("L12")
@pytest.mark.parametrize("point", ["call_intent_recorded", "result_recorded"])
def test_after_a_kill_a_turn_of_an_agent_that_cannot_resume_fails_with_a_reason(tmp_path: Path, point: str) -> None:
    owner = Owner(tmp_path, "forgets")
    assert owner.asks(RING, point).code == -9
    again = owner.asks(RING)
    assert again.code != 0
    assert CANNOT_RESUME in again.err.replace("\n", " ")
    assert len(owner.world.prompts()) == 1
