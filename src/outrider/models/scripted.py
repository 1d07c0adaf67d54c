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
from outrider.models.scripted_text import json, pieces, rough_usage

ENDED = "(script ended)"


class Wanted(Struct, frozen=True):
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
        return json(self.args) if self.raw is None else self.raw


class Says(Struct, frozen=True):
    """One reply of the script."""

    text: str = ""
    calls: tuple[Wanted, ...] = ()
    reasoning: str = ""
    usage: Usage | None = None
    """A rough count of characters when not given."""
    cut: str = ""
    """Why the reply is ended early, e.g. `length`."""
    delay: float = 0.0
    """Seconds before each piece."""
    chunk: int = 0
    """Characters in a piece; 0 for word by word."""


class Fails(Struct, frozen=True):
    """Raises before the next reply of the script, so many times."""

    error: Exception
    times: int = 1


class Stalls:
    """Holds the next reply of the script back until it is released. `begun` is set when a prompt waits here."""

    def __init__(self, text: str = "") -> None:
        self.text = text
        self.begun = anyio.Event()
        self._released = anyio.Event()

    def release(self) -> None:
        self._released.set()

    async def hold(self, emit: Emit) -> None:
        for piece in [] if self._released.is_set() else pieces(self.text):
            emit(Delta(piece))
        self.begun.set()
        await self._released.wait()


Line = Says | Callable[[Prompt], Says]
"""A reply, or a function that makes it from the prompt."""


def says(
    text: str = "", *calls: Wanted, reasoning: str = "", usage: Usage | None = None, cut: str = "", delay: float = 0.0
) -> Says:
    return Says(text, calls, reasoning, usage, cut, delay)


def call(tool: str, /, **args: object) -> Wanted:
    return Wanted(tool, args)


def broken_call(tool: str, raw: str) -> Wanted:
    """A call whose arguments are not the JSON object they should be."""
    return Wanted(tool, raw=raw)


def fails(error: Exception, times: int = 1) -> Fails:
    return Fails(error, times)


def stalls(text: str = "") -> Stalls:
    """Waits until released, having shown this much of an answer."""
    return Stalls(text)


class ScriptedModel:
    """Answers a prompt that holds n replies with the script's n-th line, counted from 0.

    Faults belong to the line after them. Which line answers depends on the prompt alone; which faults are used up, on
    this object.
    """

    def __init__(self, *lines: Line | Fails | Stalls, name: str = "scripted") -> None:
        self.traits = ModelTraits(name=name, wire="scripted")
        self.prompts: list[Prompt] = []
        """Every prompt it was asked with, the failed attempts among them."""
        self._lines: list[tuple[list[Fails | Stalls], Line]] = []
        self._failed: dict[int, int] = {}
        faults: list[Fails | Stalls] = []
        for line in lines:
            if isinstance(line, Fails | Stalls):
                faults.append(line)
            else:
                self._lines.append((faults, line))
                faults = []
        if faults:
            self._lines.append((faults, Says(ENDED)))

    async def reply(self, prompt: Prompt, emit: Emit) -> Reply:
        self.prompts.append(prompt)
        position = sum(isinstance(message, AssistantMessage) for message in prompt.messages)
        faults, line = self._lines[position] if position < len(self._lines) else ([], Says(ENDED))
        for fault in faults:
            await self._meet(fault, emit)
        return await spoken(line if isinstance(line, Says) else line(prompt), prompt, emit, self.traits.name)

    async def _meet(self, fault: Fails | Stalls, emit: Emit) -> None:
        match fault:
            case Stalls():
                await fault.hold(emit)
            case Fails(error=error, times=times):
                failed = self._failed.get(id(fault), 0)
                if failed < times:
                    self._failed[id(fault)] = failed + 1
                    raise error


async def spoken(line: Says, prompt: Prompt, emit: Emit, model: str) -> Reply:
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
        usage=line.usage or rough_usage(prompt, written, line.reasoning),
        cut=line.cut,
    )
