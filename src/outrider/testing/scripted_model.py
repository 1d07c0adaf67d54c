"""A model that says what a test wrote down: the same words for the same prompt, before and after a crash.

ScriptedModel(says("on it", call("read", path="a.txt")), fails(Unavailable("busy")), says("done"))
"""

from collections.abc import Callable

import anyio
from msgspec import Struct

from outrider.core.events import Delta, Reply
from outrider.core.ports import Emit
from outrider.core.prompt import AssistantMessage, Prompt
from outrider.core.types import ModelTraits, Usage
from outrider.models.scripted_reply import ScriptedCall, ScriptedReply, pieces, stream_reply

SCRIPT_ENDED = "(script ended)"


class ScriptedFailure(Struct, frozen=True):
    """Raises before the next reply of the script, so many times."""

    error: Exception
    times: int = 1


class ScriptedStall:
    """Holds the next reply of the script back until it is released. `begun` is set when a prompt waits here."""

    def __init__(self, text: str = "") -> None:
        self.text = text
        self.reached = anyio.Event()
        self._released = anyio.Event()

    def release(self) -> None:
        self._released.set()

    async def hold(self, emit: Emit) -> None:
        for piece in [] if self._released.is_set() else pieces(self.text):
            emit(Delta(piece))
        self.reached.set()
        await self._released.wait()


ReplySource = ScriptedReply | Callable[[Prompt], ScriptedReply]
"""A reply, or a function that makes it from the prompt."""


def says(
    text: str = "",
    *calls: ScriptedCall,
    reasoning: str = "",
    usage: Usage | None = None,
    cut: str = "",
    delay: float = 0.0,
) -> ScriptedReply:
    return ScriptedReply(text, calls, reasoning, usage, cut, delay)


def call(tool: str, /, **args: object) -> ScriptedCall:
    return ScriptedCall(tool, args)


def broken_call(tool: str, raw: str) -> ScriptedCall:
    """A call whose arguments are not the JSON object they should be."""
    return ScriptedCall(tool, raw=raw)


def fails(error: Exception, times: int = 1) -> ScriptedFailure:
    return ScriptedFailure(error, times)


def stalls(text: str = "") -> ScriptedStall:
    """Waits until released, having shown this much of an answer."""
    return ScriptedStall(text)


class ScriptedModel:
    """Answers a prompt that holds n replies with the script's n-th line, counted from 0.

    Faults belong to the line after them. Which line answers depends on the prompt alone; which faults are used up, on
    this object.
    """

    def __init__(self, *lines: ReplySource | ScriptedFailure | ScriptedStall, name: str = "scripted") -> None:
        self.traits = ModelTraits(name=name, wire="scripted")
        self.prompts: list[Prompt] = []
        """Every prompt it was asked with, the failed attempts among them."""
        self._lines: list[tuple[list[ScriptedFailure | ScriptedStall], ReplySource]] = []
        self._failed: dict[int, int] = {}
        faults: list[ScriptedFailure | ScriptedStall] = []
        for line in lines:
            if isinstance(line, ScriptedFailure | ScriptedStall):
                faults.append(line)
            else:
                self._lines.append((faults, line))
                faults = []
        if faults:
            self._lines.append((faults, ScriptedReply(SCRIPT_ENDED)))

    async def reply(self, prompt: Prompt, emit: Emit) -> Reply:
        self.prompts.append(prompt)
        position = sum(isinstance(message, AssistantMessage) for message in prompt.messages)
        faults, line = self._lines[position] if position < len(self._lines) else ([], ScriptedReply(SCRIPT_ENDED))
        for fault in faults:
            await self._apply_fault(fault, emit)
        return await stream_reply(
            line if isinstance(line, ScriptedReply) else line(prompt), prompt, emit, self.traits.name
        )

    async def _apply_fault(self, fault: ScriptedFailure | ScriptedStall, emit: Emit) -> None:
        match fault:
            case ScriptedStall():
                await fault.hold(emit)
            case ScriptedFailure(error=error, times=times):
                failed = self._failed.get(id(fault), 0)
                if failed < times:
                    self._failed[id(fault)] = failed + 1
                    raise error
