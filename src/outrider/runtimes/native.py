"""Our own loop: ask the model, run its calls, until it has nothing more to do."""

from collections.abc import Callable, Iterator, Sequence

import anyio
from msgspec.structs import replace

from outrider.config.fail import point
from outrider.core.compact import SUMMARISE, choose, outline
from outrider.core.errors import ContextTooLong, Refused
from outrider.core.events import Begun, Compacted, Delta, Result
from outrider.core.parts import Call
from outrider.core.plan import AskModel, Begin, Bounds, Finish, Idle, RunCalls, Settle, Stop, Wait, decide
from outrider.core.ports import Here, Model, Models, Session, Tools, Turn
from outrider.core.prompt import UNKNOWN, FromPerson, Prompt
from outrider.core.traits import Replay, RuntimeTraits
from outrider.runtimes.system import system_prompt

FULL = 0.8
"""Compact when the last prompt took this part of the model's window."""


class NativeRuntime:
    traits = RuntimeTraits("native", steers=True)

    def __init__(self, models: Models, tools: Tools, here: Callable[[Session], Here], bounds: Bounds) -> None:
        self._models = models
        self._tools = tools
        self._here = here
        self._bounds = bounds
        self._specs = tuple(tool.spec for tool in tools.values())
        self._replay = {spec.name: spec.replay for spec in self._specs}

    async def carry(self, turn: Turn) -> None:
        model = await self._models(turn.state().settings.get("model", ""))
        while True:
            await turn.refresh()
            match decide(turn.state(), self._replay, self._bounds):
                case AskModel():
                    await self._ask(turn, model)
                case RunCalls(calls=calls):
                    await self._run_calls(turn, calls)
                case Settle(calls=calls):
                    for call in calls:
                        await self._settle(turn, call)
                case Begin() | Finish() | Stop() | Idle() | Wait():
                    return

    async def _ask(self, turn: Turn, model: Model) -> None:
        if self._is_full(turn, model):
            await self._compact(turn, model, keep=0.25)
        keeps = iter((0.25, 0.0))
        while True:
            try:
                reply = await model.reply(self._prompt(turn), _watched(turn))
                break
            except ContextTooLong as error:
                turn.emit(Delta("the session has outgrown the model's window; summarising its earlier part", "reset"))
                keep = next(keeps, None)
                if keep is None or not await self._compact(turn, model, keep):
                    raise Refused(f"this does not fit the model's window, even summarised: {error}") from error
        point("J6" if reply.calls else "J11")
        await turn.record(reply)

    def _prompt(self, turn: Turn) -> Prompt:
        messages = turn.transcript().messages()
        return Prompt(system_prompt(turn.session), messages, self._specs, turn.state().head)

    def _is_full(self, turn: Turn, model: Model) -> bool:
        state = turn.state()
        asked = int(state.settings.get("compact", "0"))
        return asked > state.compacted or 0 < FULL * model.traits.window < state.context

    async def _compact(self, turn: Turn, model: Model, keep: float) -> bool:
        """Replace the older part of the prompt by a summary. False when nothing is left to replace."""
        upto = choose(turn.transcript(), keep)
        if upto is None:
            return False
        old = turn.transcript().before(upto)
        turn.emit(Delta("summarising the earlier part of the session", "note"))
        prompt = replace(self._prompt(turn), messages=[*old, FromPerson(SUMMARISE)])
        try:
            reply = await model.reply(prompt, lambda delta: None)
            compacted = Compacted(upto, reply.text or outline(old), reply.usage, reply.cost)
        except ContextTooLong:
            compacted = Compacted(upto, outline(old))
        point("J16")
        await turn.record(compacted)
        return True

    async def _run_calls(self, turn: Turn, calls: Sequence[Call]) -> None:
        """In the order the model wrote them; neighbours that only look run side by side."""
        for batch in _batches(calls, self._replay):
            if len(batch) == 1:
                await self._run(turn, batch[0])
                continue
            try:
                async with anyio.create_task_group() as group:
                    for call in batch:
                        group.start_soon(self._run, turn, call)
            except ExceptionGroup as several:
                raise several.exceptions[0] from several

    async def _run(self, turn: Turn, call: Call) -> None:
        tool = self._tools.get(call.tool)
        if tool is None:
            known = ", ".join(self._tools) or "none"
            await turn.record(
                Result(call.id, f"there is no tool called {call.tool!r}; there are: {known}", failed=True)
            )
        elif call.broken:
            text = f"the arguments were not a JSON object, so nothing was run. You wrote: {call.broken[:500]}"
            await turn.record(Result(call.id, text, failed=True))
        else:
            if tool.spec.replay is Replay.NEVER:
                await turn.record(Begun(call.id))
                point("J7")
            try:
                result = await tool.run(call, self._here(turn.session))
            except Refused as error:
                result = Result(call.id, str(error), failed=True)
            point("J8")
            await turn.record(result)

    async def _settle(self, turn: Turn, call: Call) -> None:
        """A call began and the process died: what came of it is found out, or told as unknown."""
        tool = self._tools.get(call.tool)
        result = await tool.reconcile(call, self._here(turn.session)) if tool else None
        await turn.record(result or Result(call.id, UNKNOWN, failed=True))


def _batches(calls: Sequence[Call], replay: dict[str, Replay]) -> Iterator[list[Call]]:
    batch: list[Call] = []
    for call in calls:
        if replay.get(call.tool) is Replay.NEVER:
            if batch:
                yield batch
            yield [call]
            batch = []
        else:
            batch.append(call)
    if batch:
        yield batch


def _watched(turn: Turn) -> Callable[[Delta], None]:
    def emit(delta: Delta) -> None:
        turn.emit(delta)
        point("J5")

    return emit
