"""What a turn costs beside its model, and whether that stays the same as a session grows."""

import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import outrider
from bench.table import Row, progress, spread
from outrider.app.agent import Agent
from outrider.config.load import load
from outrider.core.events import Delta, Reply
from outrider.core.ports import Emit
from outrider.core.prompt import Prompt, ToolMessage, UserMessage
from outrider.core.types import Call, ModelTraits, Usage, call_id
from outrider.testing.scripted_model import ScriptedReply
from outrider.testing.scripted_server.script import Script, ScriptRule
from outrider.testing.scripted_server.server import ScriptedServer


class InstantModel:
    """Answers at once. "calls N" makes N calls of `list`, one a step, before the answer."""

    traits = ModelTraits("instant", "instant")

    async def reply(self, prompt: Prompt, emit: Emit) -> Reply:
        emit(Delta("ok"))
        words, steps = "", 0
        for message in reversed(prompt.messages):
            if isinstance(message, UserMessage):
                words = message.text
                break
            steps += isinstance(message, ToolMessage)
        wanted = int(words.removeprefix("calls ")) if words.startswith("calls ") else 0
        calls = (Call(call_id(prompt.saw, 0), "list", {"path": f"./{'./' * steps}"}),) if steps < wanted else ()
        return Reply("ok", prompt.saw, calls, usage=Usage(1, 1))


async def _timed(agent: Agent, text: str, session: str, times: int) -> list[float]:
    taken: list[float] = []
    for _ in range(times):
        start = time.perf_counter()
        turn = await agent.say(text, session=session)
        taken.append(time.perf_counter() - start)
        if turn.outcome != "done":
            raise RuntimeError(turn.error)
    return taken


async def turns(times: int) -> list[Row]:
    """In-process against an instant model, and over HTTP against the scripted server."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        work = folder / "work"
        work.mkdir()
        (work / "a.txt").write_text("hello\n")
        roomy = load(folder / "home", {}, {"limits.steps": "200"})
        async with outrider.open(config=roomy, model=InstantModel(), workspace=work) as agent:
            await _timed(agent, "hello", "warm-up", 20)
            progress("turns in process")
            rows.append(Row("turn", "text", spread(await _timed(agent, "hello", "text", times)), "instant model"))
            calls = await _timed(agent, "calls 1", "call", times)
            rows.append(Row("turn", "one tool call", spread(calls), "instant model"))
            rows.extend(await _long(agent, times))
        say = Script(rules=(ScriptRule(".*", ((ScriptedReply("ok"),),)),))
        server = stack.enter_context(ScriptedServer(say))
        model = {"model.name": "openai-chat:instant", "model.url": server.url, "model.key": "none"}
        async with outrider.open(config=load(folder / "http", {}, model), workspace=work) as agent:
            await _timed(agent, "hello", "warm-up", 20)
            progress("turns over HTTP")
            rows.append(Row("turn", "text, over HTTP", spread(await _timed(agent, "hello", "text", times)), "scripted"))
            rows.extend(await _growth(agent, "over HTTP"))
    return rows


async def _long(agent: Agent, times: int) -> list[Row]:
    progress("turns of 100 steps")
    hundred = await _timed(agent, "calls 100", "steps", max(3, times // 20))
    per_step = [seconds / 101 for seconds in hundred]
    return [
        Row("turn", "100 steps", spread(hundred), "one call each, instant model"),
        Row("turn", "a step of those", spread(per_step)),
        *await _growth(agent, "in process"),
    ]


async def _growth(agent: Agent, how: str) -> list[Row]:
    progress(f"1,000 turns of one session, {how}")
    taken = await _timed(agent, "hello", "long", 1000)
    return [
        Row("turn", f"1st–50th of a session, {how}", spread(taken[:50])),
        Row("turn", f"951st–1,000th of a session, {how}", spread(taken[-50:])),
    ]
