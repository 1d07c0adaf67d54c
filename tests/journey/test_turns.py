"""Turns through the Python API: new inputs, stops, limits, compaction, resuming."""

import itertools
import shutil
from pathlib import Path

import anyio
import msgspec
import pytest

import outrider
from outrider.app.agent import Agent
from outrider.core.errors import ContextTooLong, Refused, StoreDamaged, Unavailable
from outrider.core.events import Body, Compacted, Delta, Ended, Entry, Input, Reply, Resumed
from outrider.core.ports import Emit, ToolContext
from outrider.core.prompt import NOT_RUN, AssistantMessage, Prompt, ToolMessage, UserMessage
from outrider.core.turn_result import TurnResult
from outrider.core.types import ModelTraits, Replay, Usage
from outrider.testing.scripted_model import ScriptedModel, broken_call, call, fails, says, stalls

pytestmark = pytest.mark.anyio


@outrider.tool(replay=Replay.NEVER)
async def pay(context: ToolContext, amount: int = 1) -> str:
    """Pay someone."""
    with (Path(context.workspace.root) / "paid").open("a") as file:
        file.write(f"{amount}\n")
    return f"paid {amount}"


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


def open_paying_agent(work: Path, model: ScriptedModel):
    return outrider.open(work.parent / "home", model=model, tools=[pay], workspace=work)


async def bodies(agent: Agent, name: str) -> list[Body]:
    return [entry.body for entry in await agent.journal(await agent.session(name))]


def paid(work: Path) -> list[str]:
    return (work / "paid").read_text().split() if (work / "paid").exists() else []


async def test_a_turn_gives_text_outcome_steps_usage_and_no_error(work: Path) -> None:
    model = ScriptedModel(says("let me see", call("pay", amount=3)), says("paid.", usage=Usage(20, 5)))
    async with open_paying_agent(work, model) as agent:
        turn = await agent.say("pay three", session="s")
        session = await agent.session("s")
    assert turn.usage.input > 20
    assert msgspec.structs.replace(turn, usage=Usage()) == TurnResult(
        session.id, "paid.", "done", 2, Usage(), None, "", turn.seq
    )
    assert paid(work) == ["3"]


async def test_five_inputs_typed_while_a_turn_runs_are_all_answered_in_order(work: Path) -> None:
    hold = stalls("thinking about")
    model = ScriptedModel(hold, says("first is done"), says("and context are the other five"))
    async with open_paying_agent(work, model) as agent:
        session = await agent.session("s")
        await agent.post("one", session=session)
        with anyio.fail_after(60):
            await hold.reached.wait()
        for word in ("two", "three", "four", "five", "six"):
            await agent.post(word, session=session)
        hold.release()
        with anyio.fail_after(60):
            turn = await agent.wait(await agent.session("s"))
    assert turn is not None
    assert (turn.text, turn.outcome) == ("and context are the other five", "done")
    assert [m for m in model.prompts[-1].messages if isinstance(m, UserMessage)] == [
        UserMessage(word) for word in ("one", "two", "three", "four", "five", "six")
    ]
    assert model.prompts[-1].messages[1] == AssistantMessage("first is done")


async def test_a_stop_keeps_the_partial_reply_and_the_next_message_works(work: Path) -> None:
    hold = stalls("The answer is forty-")
    model = ScriptedModel(hold, says("never said"), says("as you wish"))
    async with open_paying_agent(work, model) as agent:
        session = await agent.session("s")
        await agent.post("what is it?", session=session)
        with anyio.fail_after(60):
            await hold.reached.wait()
            assert await agent.stop(session)
            turn = await agent.say("never mind", session="s")
        ended = [body for body in await bodies(agent, "s") if isinstance(body, Ended)]
    assert turn.text == "as you wish"
    assert [(e.outcome, e.partial) for e in ended] == [("interrupted", "The answer is forty-"), ("done", "")]


class StubbornModel:
    """Keeps streaming after it was stopped, as a provider may."""

    traits = ModelTraits("stubborn", "stubborn")

    def __init__(self) -> None:
        self.begun, self.stopped, self.finished = anyio.Event(), anyio.Event(), anyio.Event()

    async def reply(self, prompt: Prompt, emit: Emit) -> Reply:
        if prompt.saw > 2:
            return Reply("the new one", prompt.saw)
        emit(Delta("the old one"))
        self.begun.set()
        with anyio.CancelScope(shield=True):
            await self.stopped.wait()
            emit(Delta(" talks on"))
            self.finished.set()
        return Reply("the old one talks on", prompt.saw)


@pytest.mark.promise("L2")
async def test_a_stopped_turn_publishes_nothing_even_when_its_model_keeps_streaming(work: Path) -> None:
    model = StubbornModel()
    deltas: list[str] = []
    async with outrider.open(work.parent / "home", model=model, workspace=work) as agent:
        session = await agent.session("s")
        await agent.post("old", session=session)
        with anyio.fail_after(60):
            await model.begun.wait()
            await agent.stop(session)
            model.stopped.set()
            await model.finished.wait()
            async for event in agent.events("new", session="s"):
                if isinstance(event, Delta):
                    deltas.append(event.text)
        journal = await bodies(agent, "s")
    assert [body.text for body in journal if isinstance(body, Reply)] == ["the new one"]
    assert [(b.outcome, b.partial) for b in journal if isinstance(b, Ended)] == [
        ("interrupted", "the old one"),
        ("done", ""),
    ]
    assert "talks on" not in "".join(deltas)


async def test_stopping_an_idle_session_does_nothing(work: Path) -> None:
    async with open_paying_agent(work, ScriptedModel(says("hi"))) as agent:
        await agent.say("hi", session="s")
        before = await bodies(agent, "s")
        assert not await agent.stop(await agent.session("s"))
        assert await bodies(agent, "s") == before


async def test_the_model_gets_errors_for_an_unknown_tool_and_broken_arguments(work: Path) -> None:
    model = ScriptedModel(says("", call("fly"), broken_call("pay", '{"amount": ')), says("sorry"))
    async with open_paying_agent(work, model) as agent:
        turn = await agent.say("go", session="s")
    results = model.prompts[-1].messages[-1]
    assert isinstance(results, ToolMessage)
    assert all(result.failed for result in results.results)
    assert "there is no tool 'fly'" in results.results[0].text
    assert "not a JSON object" in results.results[1].text
    assert (turn.outcome, paid(work)) == ("done", [])


async def test_a_refusing_model_ends_the_turn_with_its_words_and_the_next_turn_works(work: Path) -> None:
    model = ScriptedModel(fails(Refused("the key is wrong")), says("hello again"))
    async with open_paying_agent(work, model) as agent:
        failed = await agent.say("hi", session="s")
        turn = await agent.say("hi", session="s")
    assert (failed.outcome, failed.error, failed.text) == ("failed", "the key is wrong", "")
    assert (turn.outcome, turn.text) == ("done", "hello again")


async def test_a_turn_fails_with_the_error_of_an_unavailable_model(work: Path) -> None:
    async with open_paying_agent(work, ScriptedModel(fails(Unavailable("the model is busy"), 9))) as agent:
        turn = await agent.say("hi")
    assert (turn.outcome, turn.error) == ("failed", "the model is busy")


async def test_a_session_that_outgrows_the_context_window_is_summarized_and_continues(work: Path) -> None:
    lines = [says(f"answer {n} " + "y" * 200) for n in range(8)]
    model = ScriptedModel(*lines, fails(ContextTooLong("too long")), says("a summary"))
    async with open_paying_agent(work, model) as agent:
        for n in range(8):
            await agent.say(f"question {n}", session="s")
        turn = await agent.say("and now?", session="s")
        compacted = [body for body in await bodies(agent, "s") if isinstance(body, Compacted)]
    assert turn.outcome == "done"
    assert len(compacted) == 1
    assert len(model.prompts[-1].messages) < len(model.prompts[-3].messages)
    assert model.prompts[-1].messages[-1] == UserMessage("and now?")


async def test_an_input_that_does_not_fit_the_context_window_fails_with_the_reason(work: Path) -> None:
    async with open_paying_agent(work, ScriptedModel(fails(ContextTooLong("at most 8192 tokens"), 9))) as agent:
        turn = await agent.say("hi", session="s")
    assert turn.error == "the session exceeds the model's context window, even summarised: at most 8192 tokens"


@pytest.mark.promise("L7")
async def test_a_model_that_repeats_a_call_is_stopped_with_the_reason(work: Path) -> None:
    looping = [says("", call("list")) for _ in range(20)]
    async with open_paying_agent(work, ScriptedModel(*looping)) as agent:
        turn = await agent.say("loop", session="s")
        again = await agent.say("stop that", session="s")
    assert turn.outcome == "failed"
    assert turn.error.startswith("stopped: the model made the same call 4 times in a row")
    assert again.steps > 0


@pytest.mark.promise("L7")
async def test_an_endless_turn_stops_at_its_limit_of_steps(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_LIMITS_STEPS", "5")
    looping = [says("", call("pay", amount=n)) for n in range(20)]
    async with open_paying_agent(work, ScriptedModel(*looping)) as agent:
        turn = await agent.say("loop", session="s")
    assert turn.error == "stopped after 5 steps, the limit of one turn (limits.steps)"
    assert paid(work) == ["0", "1", "2", "3"]


@pytest.mark.promise("L7")
async def test_a_turn_stops_at_its_limit_of_time(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_LIMITS_SECONDS", "1")
    async with open_paying_agent(work, ScriptedModel(stalls("hm"), says("never"))) as agent:
        with anyio.fail_after(60):
            turn = await agent.say("wait", session="s")
    assert turn.error == "stopped after 1 s, the limit of one turn (limits.seconds)"


@pytest.mark.promise("L7")
async def test_too_many_waiting_inputs_are_refused(work: Path) -> None:
    hold = stalls()
    async with open_paying_agent(work, ScriptedModel(hold, says("done"), says("all"))) as agent:
        session = await agent.session("s")
        await agent.post("0", session=session)
        with anyio.fail_after(60):
            await hold.reached.wait()
        for n in range(1, 20):
            await agent.post(str(n), session=session)
        with pytest.raises(Refused, match="20"):
            await agent.post("one too many", session=session)
        hold.release()
        with anyio.fail_after(60):
            await agent.wait(await agent.session("s"))
        texts = [body.text for body in await bodies(agent, "s") if isinstance(body, Input)]
    assert texts == [str(n) for n in range(20)]


@pytest.mark.promise("L1b")
async def test_the_same_key_gives_the_same_turn_and_runs_nothing_twice(work: Path) -> None:
    model = ScriptedModel(says("", call("pay")), says("paid"))
    async with open_paying_agent(work, model) as agent:
        first = await agent.say("pay", session="s", key="k1")
        second = await agent.say("pay", session="s", key="k1")
    assert first == second
    assert (len(model.prompts), paid(work)) == (2, ["1"])


async def test_a_turn_released_on_shutdown_is_resumed_and_does_not_count_as_a_crash(work: Path) -> None:
    for _ in range(5):
        hold = stalls("working on")
        async with open_paying_agent(work, ScriptedModel(hold, says("never"))) as agent:
            session = await agent.session("s")
            if not session.has_work:
                await agent.post("do it", session=session)
            await agent.resume_all()
            with anyio.fail_after(60):
                await hold.reached.wait()
    async with open_paying_agent(work, ScriptedModel(says("finished at last"))) as agent:
        with anyio.fail_after(60):
            turn = await agent.wait(await agent.session("s"))
        resumed = [body for body in await bodies(agent, "s") if isinstance(body, Resumed)]
    assert turn is not None
    assert turn.text == "finished at last"
    assert resumed == [Resumed(crashed=False)] * 5


async def test_a_slow_session_does_not_block_another(work: Path) -> None:
    hold = stalls("slow")
    async with open_paying_agent(work, ScriptedModel(hold, says("slow is done"))) as agent:
        session = await agent.session("slow")
        await agent.post("be slow", session=session)
        with anyio.fail_after(60):
            await hold.reached.wait()
        await agent.change(await agent.session("quick"), {"model": "practice"})
        with anyio.fail_after(60):
            quick = await agent.say("hello", session="quick")
        hold.release()
        with anyio.fail_after(60):
            await agent.wait(await agent.session("slow"))
    assert quick.outcome == "done"


async def test_events_are_the_whole_turn_and_deltas_add_up_to_the_reply(work: Path) -> None:
    model = ScriptedModel(says("one two three", reasoning="let me think"))
    seen: list[Entry | Delta] = []
    async with open_paying_agent(work, model) as agent:
        async for event in agent.events("hi", session="s"):
            seen.append(event)
        assert [e.body for e in seen if isinstance(e, Entry)] == await bodies(agent, "s")
    assert "".join(d.text for d in seen if isinstance(d, Delta) and d.kind == "text") == "one two three"


async def test_a_stop_between_steps_repeats_no_call_and_loses_no_result(work: Path) -> None:
    hold = stalls("hm")
    model = ScriptedModel(says("", call("pay")), hold, says("x"), says("ok"))
    async with open_paying_agent(work, model) as agent:
        session = await agent.session("s")
        await agent.post("pay", session=session)
        with anyio.fail_after(60):
            await hold.reached.wait()
            await agent.stop(session)
            await agent.say("and?", session="s")
    assert NOT_RUN not in str(model.prompts[-1].messages)
    assert paid(work) == ["1"]


async def test_a_bug_in_a_tool_ends_the_turn_and_not_the_process(work: Path) -> None:
    @outrider.tool()
    async def crash(context: ToolContext) -> str:
        """Crash."""
        raise ZeroDivisionError("oops")

    model = ScriptedModel(says("", call("crash")), says("still context"))
    async with outrider.open(work.parent / "home", model=model, tools=[crash], workspace=work) as agent:
        turn = await agent.say("crash", session="s")
        again = await agent.say("hello?", session="s")
    assert (turn.outcome, turn.error) == ("failed", "internal error: ZeroDivisionError: oops")
    assert again.outcome == "done"


async def test_prompts_of_one_session_only_grow(work: Path) -> None:
    model = ScriptedModel(says("", call("pay")), says("a"), says("", call("list")), says("b"))
    async with open_paying_agent(work, model) as agent:
        await agent.say("one", session="s")
        await agent.say("two", session="s")
    for earlier, later in itertools.pairwise(model.prompts):
        assert list(later.messages[: len(earlier.messages)]) == list(earlier.messages)
        assert (later.system, later.tools) == (earlier.system, earlier.tools)


def test_the_blocking_agent_does_the_same_without_an_event_loop(work: Path) -> None:
    model = ScriptedModel(says("hello"), says("again"))
    with outrider.open_blocking(work.parent / "home", model=model, workspace=work) as agent:
        turn = agent.say("hi", session="s")
        events = list(agent.events("hi again", session="s"))
        session = agent.session("s")
        assert [s.name for s in agent.sessions()] == ["s"]
        replies = [e.body.text for e in agent.journal(session) if isinstance(e.body, Reply)]
    assert (turn.text, replies) == ("hello", ["hello", "again"])
    assert isinstance(events[-1], Entry)
    assert isinstance(events[-1].body, Ended)


def test_a_blocking_program_may_stop_reading_events_and_continue(work: Path) -> None:
    model = ScriptedModel(says("one two three"), says("again"))
    with outrider.open_blocking(work.parent / "home", model=model, workspace=work) as agent:
        for event in agent.events("hi", session="s"):
            assert isinstance(event, Entry)
            break
        agent.wait(agent.find("s"))
        assert agent.say("hi again", session="s").text == "again"


async def test_a_turn_is_finished_by_the_model_that_started_it(work: Path) -> None:
    hold = stalls("hm")
    async with open_paying_agent(work, ScriptedModel(hold, says("never"), name="practice")) as agent:
        session = await agent.session("s")
        await agent.post("hello", session=session)
        with anyio.fail_after(60):
            await hold.reached.wait()
    other = ScriptedModel(says("from another"), name="another")
    async with open_paying_agent(work, other) as agent:
        with anyio.fail_after(60):
            turn = await agent.wait(await agent.session("s"))
    assert turn is not None
    assert "practice model" in turn.text
    assert other.prompts == []


async def test_opening_a_home_resumes_no_session_by_itself(work: Path) -> None:
    hold = stalls("hm")
    async with open_paying_agent(work, ScriptedModel(hold, says("never"))) as agent:
        await agent.post("hello", session=await agent.session("left"))
        with anyio.fail_after(60):
            await hold.reached.wait()
    async with open_paying_agent(work, ScriptedModel(says("mine"))) as agent:
        await agent.say("hi", session="mine")
        assert [session.name for session in await agent.unfinished()] == ["left"]


@pytest.mark.promise("L1")
@pytest.mark.promise("L12")
async def test_a_home_that_is_removed_under_a_running_agent_is_noticed(work: Path) -> None:
    async with open_paying_agent(work, ScriptedModel(says("one"), says("two"))) as agent:
        await agent.say("hi", session="s")
        shutil.rmtree(work.parent / "home")
        with pytest.raises(StoreDamaged, match="was removed or replaced"):
            await agent.say("anyone there?", session="s")


async def test_a_key_used_before_with_another_text_is_refused(work: Path) -> None:
    async with open_paying_agent(work, ScriptedModel(says("one"), says("two"))) as agent:
        await agent.say("pay the rent", session="s", key="k1")
        with pytest.raises(Refused, match="was used before with another text"):
            await agent.say("pay the power", session="s", key="k1")
