"""A model that says what a test wrote down: the same words for the same prompt, before and after a crash.

ScriptedModel(says("on it", call("read", path="a.txt")), fails(Unavailable("busy")), says("done"))
"""

from collections.abc import Callable

import anyio
from msgspec import Struct

from outrider.core.events import Delta, Reply
from outrider.core.parts import Call, Reasoning, Usage, call_id
from outrider.core.ports import Emit
from outrider.core.prompt import AssistantMessage, Prompt
from outrider.core.traits import ModelTraits
from outrider.models.scripted_text import estimate_usage, pieces, to_json

SCRIPT_ENDED = "(script ended)"


class ScriptedCall(Struct, frozen=True):
    """A call a line makes."""

    tool: str
    args: dict[str, object] = {}
    raw: str | None = None
    """Sent in place of `args`, as it is: broken JSON, say, or the input of a custom tool."""
    namespace: str = ""
    """Where an API groups its tools, the group."""
    custom: bool = False
    """Whether `raw` is the free-form input of a custom tool, where an API has those."""

    def arguments(self) -> str:
        return to_json(self.args) if self.raw is None else self.raw


class ScriptedReply(Struct, frozen=True):
    """One reply of the script."""

    text: str = ""
    calls: tuple[ScriptedCall, ...] = ()
    reasoning: str = ""
    usage: Usage | None = None
    """A rough count of characters when not given."""
    cut: str = ""
    """Why the reply is ended early, e.g. `length`."""
    delay: float = 0.0
    """Seconds before each piece."""
    chunk: int = 0
    """Characters in a piece; 0 for word by word."""


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


async def stream_reply(line: ScriptedReply, prompt: Prompt, emit: Emit, model: str) -> Reply:
    """Say this line in answer to this prompt, piece by piece."""
    for kind, text in (("reasoning", line.reasoning), ("text", line.text)):
        for piece in pieces(text, line.chunk):
            if line.delay:
                await anyio.sleep(line.delay)
            emit(Delta(piece, "reasoning" if kind == "reasoning" else "text"))
    for wanted in line.calls:
        emit(Delta(wanted.tool, "call"))
    written = [line.text, *(wanted.tool + wanted.arguments() for wanted in line.calls)]
    return Reply(
        text=line.text,
        saw=prompt.saw,
        calls=tuple(
            Call(call_id(prompt.saw, n), wanted.tool, wanted.args, wanted.raw or "")
            for n, wanted in enumerate(line.calls)
        ),
        reasoning=(Reasoning(line.reasoning, "scripted"),) if line.reasoning else (),
        model=model,
        usage=line.usage or estimate_usage(prompt, written, line.reasoning),
        cut=line.cut,
    )
