"""OpenAI's chat completions as a remote agent speaks them: rendering of the request, parsing of the reply. Pure."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import Struct, field

from outrider.core.events import Delta
from outrider.core.ports import Emit
from outrider.core.prompt import AssistantMessage, Message, ToolMessage, UserMessage
from outrider.core.store_port import Blobs
from outrider.core.types import Usage
from outrider.runtimes.external.images import data_url
from outrider.runtimes.jsonrpc.decoding import UNREAD, WHOLE, LenientDecoder
from outrider.runtimes.remote.errors import DECODE_ERRORS, content_failure, message_of

CUT_REASONS = {"length": "length", "content_filter": "content filter"}
"""`Reply.cut` by the reason for which the remote agent ended its reply early."""
NOTICE = "[notice] "
INTERRUPTED = (
    "[Your work on the message below was cut off. Some of it may be done already: check before you repeat anything, "
    "and continue from there.]\n\n"
)
MAX_UNREAD = 5
"""Fields that are named when nothing of a reply could be read."""
MAX_REPLY = 4 * 1024 * 1024
"""Characters of one reply."""
_OWN_WORDS = re.compile(r"Remote (error \(\d+\)|connection error): ")
"""A reply that this runtime wrote itself, because the remote agent gave none."""


def render_messages(
    messages: Sequence[Message], instructions: str, blobs: Blobs, *, was_interrupted: bool
) -> list[dict[str, Any]]:
    """The context, if there is any; then what the person and the agent said. Calls and results are left out."""
    rendered: list[dict[str, Any]] = [{"role": "system", "content": instructions}] if instructions.strip() else []
    last = max((n for n, one in enumerate(messages) if isinstance(one, UserMessage)), default=-1)
    for number, message in enumerate(messages):
        match message:
            case UserMessage():
                prefix = INTERRUPTED if was_interrupted and number == last else ""
                if content := _user_content(message, prefix, blobs):
                    rendered.append({"role": "user", "content": content})
            case AssistantMessage(text=text):
                if text.strip() and not _OWN_WORDS.match(text):
                    rendered.append({"role": "assistant", "content": text})
            case ToolMessage():
                pass
    return rendered


def _user_content(message: UserMessage, prefix: str, blobs: Blobs) -> str | list[dict[str, Any]]:
    text = message.text if message.source == "person" else NOTICE + message.text
    text = prefix + text if text.strip() else prefix.strip()
    if not message.images:
        return text
    parts: list[dict[str, Any]] = [{"type": "text", "text": text}] if text.strip() else []
    for image in message.images:
        parts.append({"type": "image_url", "image_url": {"url": data_url(image.media, blobs.get(image.blob))}})
    return parts


def render_request(model: str, messages: Sequence[dict[str, Any]]) -> bytes:
    body = {"model": model, "messages": messages, "stream": True, "stream_options": {"include_usage": True}}
    return msgspec.json.encode(body)


class _Text(Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None


class _Choice(Struct):
    delta: _Text | None = None
    message: _Text | None = None
    finish_reason: str | None = None


class _InputDetails(Struct):
    cached_tokens: int | None = None


class _OutputDetails(Struct):
    reasoning_tokens: int | None = None


class _TokenCounts(Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _InputDetails | None = None
    completion_tokens_details: _OutputDetails | None = None


class _Chunk(Struct):
    choices: list[_Choice] = []
    usage: _TokenCounts | None = None
    model: str | None = None
    error: object = None
    unread: tuple[str, ...] = field(default=(), name=UNREAD)


_CHUNKS = LenientDecoder(_Chunk)


class CompletionParser:
    """Assembles one reply from chunks or from a whole completion. Raises RemoteFailed for anything else."""

    def __init__(self, emit: Emit, status: int, redact: Callable[[str], str]) -> None:
        self._emit = emit
        self._status = status
        self._redact = redact
        self._parts: list[str] = []
        self._length = 0
        self._unread: dict[str, None] = {}
        """Fields of another type, in the order in which they came."""
        self.model = ""
        self.usage = Usage()
        self.finish_reason = ""
        self.is_done = False
        """Whether the agent has said that nothing follows."""

    @property
    def text(self) -> str:
        return "".join(self._parts)

    @property
    def is_complete(self) -> bool:
        """Whether the whole reply is here."""
        return self.is_done or bool(self.finish_reason)

    def feed(self, data: bytes) -> None:
        """One event of the stream."""
        if data.strip() == b"[DONE]":
            self.is_done = True
        elif data.strip():
            self._add(self._decode(data))

    def body(self, content: bytes) -> None:
        """A whole completion, from a server that does not stream."""
        self._add(self._decode(content))
        self.is_done = True

    def check(self) -> None:
        """Raise RemoteFailed for a reply without text."""
        if not self.text.strip():
            wants_tool = self.finish_reason in ("tool_calls", "function_call")
            unread = f"; fields of an unknown type: {', '.join(self._unread)}" if self._unread else ""
            message = (
                "it asked for a tool call, and it was offered none" if wants_tool else f"the reply is empty{unread}"
            )
            raise content_failure(self._status, message, self._redact)

    def _decode(self, data: bytes) -> _Chunk:
        try:
            return msgspec.json.decode(data, type=_Chunk)
        except DECODE_ERRORS as error:
            chunk = _CHUNKS.decode(data)
            if WHOLE in chunk.unread:
                start = data[:200].decode("utf-8", "replace")
                raise content_failure(self._status, f"not a chat completion ({error}): {start}", self._redact) from None
            self._unread |= dict.fromkeys(chunk.unread[: MAX_UNREAD - len(self._unread)])
            return chunk

    def _add(self, chunk: _Chunk) -> None:
        if chunk.error:
            raise content_failure(_status_in(chunk.error, self._status), message_of(chunk.error), self._redact)
        self.model = chunk.model or self.model
        if chunk.usage:
            self.usage = _usage(chunk.usage)
        for choice in chunk.choices[:1]:
            part = choice.delta or choice.message or _Text()
            if thought := part.reasoning_content or part.reasoning:
                self._emit(Delta(self._redact(thought), "reasoning"))
            if text := part.content or part.refusal:
                self._length += len(text)
                if self._length > MAX_REPLY:
                    message = f"the reply has more than {MAX_REPLY:,} characters"
                    raise content_failure(self._status, message, self._redact)
                self._parts.append(text)
                self._emit(Delta(text))
            self.finish_reason = choice.finish_reason or self.finish_reason


class _CodedError(Struct):
    code: object = None


def _status_in(error: object, status: int) -> int:
    """The HTTP status that an error object names, if it names one."""
    try:
        code = msgspec.convert(error, _CodedError).code
    except msgspec.ValidationError:
        return status
    return code if isinstance(code, int) and 400 <= code < 600 else status


def _usage(counts: _TokenCounts) -> Usage:
    cached = counts.prompt_tokens_details and counts.prompt_tokens_details.cached_tokens
    reasoning = counts.completion_tokens_details and counts.completion_tokens_details.reasoning_tokens
    return Usage(
        input=counts.prompt_tokens or 0,
        output=counts.completion_tokens or 0,
        cached=cached or 0,
        reasoning=reasoning or 0,
    )
