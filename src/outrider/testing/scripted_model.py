"""A deterministic model for tests: it answers with the replies that the test wrote down.

    ScriptedModel(says("On it.", call("read", path="a.txt")), fails(Unavailable("busy")), says("Done."))

Which reply answers depends on the prompt alone, so a new model object continues where one was killed.
"""

import re
from collections.abc import Callable

import anyio
import msgspec
from msgspec import Struct

from outrider.core.compaction import message_size
from outrider.core.events import Delta, Reply
from outrider.core.ports import Emit
from outrider.core.prompt import AssistantMessage, Prompt
from outrider.core.types import Call, ModelTraits, Reasoning, Usage, call_id

SCRIPT_ENDED = "(script ended)"
_WORD = re.compile(r"\S+\s*|\s+")


class ScriptedCall(Struct, frozen=True):
    """A tool call of a scripted reply."""

    tool: str
    args: dict[str, object] = {}
    raw: str | None = None
    """Sent unchanged in place of `args`: broken JSON, or the input of a custom tool."""
    namespace: str = ""
    """The group of the tool, where an API groups tools."""
    custom: bool = False
    """Whether `raw` is the free-form input of a custom tool, where an API has those."""

    def arguments(self) -> str:
        return _to_json(self.args) if self.raw is None else self.raw


class ScriptedReply(Struct, frozen=True):
    text: str = ""
    calls: tuple[ScriptedCall, ...] = ()
    reasoning: str = ""
    usage: Usage | None = None
    """Estimated from the length of the texts if not set."""
    cut: str = ""
    """Why the reply ends early, e.g. `length`."""
    delay: float = 0.0
    """Seconds before each piece."""
    chunk: int = 0
    """Characters in each piece; 0 streams word by word."""


class ScriptedFailure(Struct, frozen=True):
    """An error raised before the next reply of the script."""

    error: Exception
    times: int = 1


class ScriptedStall:
    """A pause before the next reply of the script, until it is released."""

    def __init__(self, text: str = "") -> None:
        self.text = text
        self.reached = anyio.Event()
        """Set when a prompt waits here."""
        self._released = anyio.Event()

    def release(self) -> None:
        self._released.set()

    async def hold(self, emit: Emit) -> None:
        for piece in [] if self._released.is_set() else pieces(self.text):
            emit(Delta(piece))
        self.reached.set()
        await self._released.wait()


ReplySource = ScriptedReply | Callable[[Prompt], ScriptedReply]
"""A reply, or a function that makes one from the prompt."""


def says(
    text: str = "",
    *calls: ScriptedCall,
    reasoning: str = "",
    usage: Usage | None = None,
    cut: str = "",
    delay: float = 0.0,
) -> ScriptedReply:
    """A reply with this text and these tool calls."""
    return ScriptedReply(text, calls, reasoning, usage, cut, delay)


def call(tool: str, /, **args: object) -> ScriptedCall:
    """A tool call with these arguments."""
    return ScriptedCall(tool, args)


def broken_call(tool: str, raw: str) -> ScriptedCall:
    """A tool call whose arguments are not a JSON object."""
    return ScriptedCall(tool, raw=raw)


def fails(error: Exception, times: int = 1) -> ScriptedFailure:
    """Raise this error before the next reply, once or several times."""
    return ScriptedFailure(error, times)


def stalls(text: str = "") -> ScriptedStall:
    """Stream this text, then wait until `release()` is called."""
    return ScriptedStall(text)


class ScriptedModel:
    """A model that answers a prompt with n earlier replies with the n-th reply of its script, counted from 0.

    Failures and stalls belong to the reply after them. They are counted by this object and happen only as often as the
    script says.
    """

    def __init__(self, *lines: ReplySource | ScriptedFailure | ScriptedStall, name: str = "scripted") -> None:
        self.traits = ModelTraits(name=name, wire="scripted")
        self.prompts: list[Prompt] = []
        """All prompts, including those of failed attempts."""
        self._steps: list[tuple[list[ScriptedFailure | ScriptedStall], ReplySource]] = []
        self._failed: dict[int, int] = {}
        faults: list[ScriptedFailure | ScriptedStall] = []
        for line in lines:
            if isinstance(line, ScriptedFailure | ScriptedStall):
                faults.append(line)
            else:
                self._steps.append((faults, line))
                faults = []
        if faults:
            self._steps.append((faults, ScriptedReply(SCRIPT_ENDED)))

    async def reply(self, prompt: Prompt, emit: Emit) -> Reply:
        self.prompts.append(prompt)
        position = sum(isinstance(message, AssistantMessage) for message in prompt.messages)
        faults, source = self._steps[position] if position < len(self._steps) else ([], ScriptedReply(SCRIPT_ENDED))
        for fault in faults:
            match fault:
                case ScriptedStall():
                    await fault.hold(emit)
                case ScriptedFailure(error=error, times=times):
                    failed = self._failed.get(id(fault), 0)
                    if failed < times:
                        self._failed[id(fault)] = failed + 1
                        raise error
        reply = source if isinstance(source, ScriptedReply) else source(prompt)
        return await _stream_reply(reply, prompt, emit, self.traits.name)


async def _stream_reply(reply: ScriptedReply, prompt: Prompt, emit: Emit, model: str) -> Reply:
    for kind, text in (("reasoning", reply.reasoning), ("text", reply.text)):
        for piece in pieces(text, reply.chunk):
            if reply.delay:
                await anyio.sleep(reply.delay)
            emit(Delta(piece, "reasoning" if kind == "reasoning" else "text"))
    for call in reply.calls:
        emit(Delta(call.tool, "call"))
    return Reply(
        text=reply.text,
        saw=prompt.saw,
        calls=tuple(
            Call(call_id(prompt.saw, n), call.tool, call.args, call.raw or "") for n, call in enumerate(reply.calls)
        ),
        reasoning=(Reasoning(reply.reasoning, "scripted"),) if reply.reasoning else (),
        model=model,
        usage=estimate_usage(reply, _prompt_size(prompt)),
        cut=reply.cut,
    )


def pieces(text: str, chunk: int = 0) -> list[str]:
    """The text in pieces of `chunk` characters, or word by word, each with the white space after it."""
    return [text[at : at + chunk] for at in range(0, len(text), chunk)] if chunk > 0 else _WORD.findall(text)


def estimate_usage(reply: ScriptedReply, prompt_size: int) -> Usage:
    """The usage of this reply to a prompt of so many characters, at about four characters a token."""
    if reply.usage is not None:
        return reply.usage
    reasoning = _tokens(len(reply.reasoning))
    text = _tokens(len(reply.text) + sum(len(call.tool) + len(call.arguments()) for call in reply.calls))
    return Usage(input=_tokens(prompt_size), output=text + reasoning, reasoning=reasoning)


def _prompt_size(prompt: Prompt) -> int:
    tools = sum(len(tool.name) + len(tool.description) + len(_to_json(tool.schema)) for tool in prompt.tools)
    return len(prompt.system) + len(prompt.tail) + tools + sum(message_size(message) for message in prompt.messages)


def _tokens(characters: int) -> int:
    return -(-characters // 4)


def _to_json(value: object) -> str:
    return msgspec.json.encode(value).decode()
