"""Encoding of prompts, as far as the wires share it: cached renderings, valid names and ids, images, filler texts."""

import re
from base64 import b64encode
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Generic, TypeVar

import msgspec
from msgspec import Struct

from outrider.core.errors import Refused
from outrider.core.prompt import Message
from outrider.core.store_port import Blobs
from outrider.core.types import Call, Image, Reasoning, ToolSpec

SESSION_START = "[The session begins here.]"
"""The first user message, for a wire that requires one."""
CONTINUE = "[Continue.]"
"""The last user message, for a wire that requires one."""
NO_OUTPUT = "(no output)"
"""The text of an empty result, for a wire that refuses an empty one."""
TOOL_IMAGE = "[Image returned by the tool:]"
IMAGE_UNAVAILABLE = "[An image was here; it cannot be shown.]"
_MEDIA_TYPES = {"image/png", "image/jpeg", "image/gif", "image/webp"}
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")
_ID = re.compile(r"[a-zA-Z0-9_-]{1,40}")
_MAX_CACHE_BYTES = 64 * 1024 * 1024
_MAX_CACHED_MESSAGES = 50_000
encode = msgspec.json.Encoder().encode
T = TypeVar("T")


class RenderCache(Generic[T]):
    """Cached renderings of message objects: a long prompt costs only its newest messages. Bounded."""

    def __init__(self, render: Callable[[Message], T], size: Callable[[T], int]) -> None:
        self._render = render
        self._size = size
        self._by_id: dict[int, tuple[Message, T]] = {}
        self._bytes = 0

    def get(self, message: Message) -> T:
        # The entry holds the message too: an id is unique only while its object lives.
        entry = self._by_id.get(id(message))
        if entry is not None:
            return entry[1]
        rendering = self._render(message)
        if self._bytes > _MAX_CACHE_BYTES or len(self._by_id) >= _MAX_CACHED_MESSAGES:
            self._by_id.clear()
            self._bytes = 0
        self._by_id[id(message)] = (message, rendering)
        self._bytes += self._size(rendering)
        return rendering


class ToolListCache(Generic[T]):
    """The last rendered list of tools: it rarely changes during a session."""

    def __init__(self, render: Callable[[Sequence[ToolSpec]], T]) -> None:
        self._render = render
        self._last: tuple[tuple[ToolSpec, ...], T] | None = None

    def get(self, tools: tuple[ToolSpec, ...]) -> T:
        if self._last is None or self._last[0] is not tools:
            self._last = (tools, self._render(tools))
        return self._last[1]


class EncodedImage(Struct, frozen=True):
    """An image as base64 text."""

    media_type: str
    base64: str

    @property
    def url(self) -> str:
        return f"data:{self.media_type};base64,{self.base64}"


def encode_image(image: Image, blobs: Blobs) -> EncodedImage | None:
    """The image, or None if it is gone or of a type that no provider reads."""
    if image.media not in _MEDIA_TYPES:
        return None
    try:
        return EncodedImage(image.media, b64encode(blobs.get(image.blob)).decode())
    except Refused:
        return None


def decode_opaque(part: Reasoning, wire: str, decode: Callable[[str], T]) -> T | None:
    """The data that this wire attached to the reasoning; None if another wire wrote it, or if it cannot be read."""
    if part.wire != wire or not part.opaque:
        return None
    try:
        return decode(part.opaque)
    except msgspec.DecodeError:
        return None


def is_blank(text: str) -> bool:
    return not text or text.isspace()


def tool_name(name: str) -> str:
    """A tool name that every provider accepts, even if the model made it up."""
    return _NOT_IN_NAMES.sub("_", name)[:64] or "unknown"


def wire_id(id: str) -> str:
    """An id that every provider accepts; an id of another runtime is replaced by its hash."""
    return id if _ID.fullmatch(id) else "c" + blake2b(id.encode("utf-8", "replace"), digest_size=4).hexdigest()


def call_arguments(call: Call) -> dict[str, object]:
    """The arguments of the call; broken ones as the text that the model wrote."""
    return {"unreadable": call.broken[:2000]} if call.broken else call.args
