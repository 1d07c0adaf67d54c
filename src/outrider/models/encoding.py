"""What the three renderers share: kept bytes, valid names and ids, images, words where a wire wants some. Pure."""

import re
from base64 import b64encode
from collections.abc import Callable
from hashlib import blake2b
from typing import Generic, TypeVar

import msgspec
from msgspec import Struct

from outrider.core.errors import Refused
from outrider.core.prompt import Message
from outrider.core.store_port import Blobs
from outrider.core.types import Call, Image

SESSION_START = "[The session begins here.]"
"""Said for the person where a wire wants their words first."""
CONTINUE = "[Go on.]"
"""Said for the person where a wire wants their words last."""
NO_OUTPUT = "(no output)"
"""A result without words, where a wire refuses an empty one."""
TOOL_IMAGE = "[The picture that the tool returned:]"
IMAGE_UNAVAILABLE = "[A picture was here; it cannot be shown.]"
_MEDIA_TYPES = {"image/png", "image/jpeg", "image/gif", "image/webp"}
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")
_ID = re.compile(r"[a-zA-Z0-9_-]{1,40}")
_MAX_CACHE_BYTES = 64 * 1024 * 1024
_MAX_CACHED_MESSAGES = 50_000
encode = msgspec.json.Encoder().encode
T = TypeVar("T")


class RenderCache(Generic[T]):
    """Renderings of message objects, so that a long prompt costs its newest messages only. Bounded."""

    def __init__(self, render: Callable[[Message], T], size: Callable[[T], int]) -> None:
        self._render = render
        self._size = size
        self._by_id: dict[int, tuple[Message, T]] = {}
        self._bytes = 0

    def get(self, message: Message) -> T:
        # The message is held beside its rendering: as long as it lives, its id is its own.
        found = self._by_id.get(id(message))
        if found is not None:
            return found[1]
        rendering = self._render(message)
        if self._bytes > _MAX_CACHE_BYTES or len(self._by_id) >= _MAX_CACHED_MESSAGES:
            self._by_id.clear()
            self._bytes = 0
        self._by_id[id(message)] = (message, rendering)
        self._bytes += self._size(rendering)
        return rendering


class EncodedImage(Struct, frozen=True):
    """An image as the wires want it."""

    media_type: str
    base64: str

    @property
    def url(self) -> str:
        return f"data:{self.media_type};base64,{self.base64}"


def encode_image(image: Image, blobs: Blobs) -> EncodedImage | None:
    """The image, or None when it is gone or of a kind that no provider reads."""
    if image.media not in _MEDIA_TYPES:
        return None
    try:
        return EncodedImage(image.media, b64encode(blobs.get(image.blob)).decode())
    except Refused:
        return None


def is_blank(text: str) -> bool:
    return not text or text.isspace()


def tool_name(name: str) -> str:
    """A name every provider takes back, even where the model made it up."""
    return _NOT_IN_NAMES.sub("_", name)[:64] or "unknown"


def wire_id(id: str) -> str:
    """The call's id; one that came from another runtime is made fit."""
    return id if _ID.fullmatch(id) else "c" + blake2b(id.encode("utf-8", "replace"), digest_size=4).hexdigest()


def call_arguments(call: Call) -> dict[str, object]:
    """The call's arguments; broken ones are shown back as what was written."""
    return {"unreadable": call.broken[:2000]} if call.broken else call.args
