"""What one wire format brings: an address, a renderer and a parser. `asking.WireModel` does the rest."""

from enum import Enum
from typing import Protocol
from urllib.parse import urlsplit

from outrider.core.errors import Refused
from outrider.core.ports import Emit
from outrider.core.prompt import Prompt
from outrider.models.draft import ReplyBuilder


class ReasoningReplay(Enum):
    """How much of earlier reasoning goes back to the provider."""

    FULL = "whole"
    LENIENT = "loose"
    """All of it, with leave to drop what no longer fits."""
    NONE = "bare"
    """None of it."""


class ReplyParser(Protocol):
    """Turns one answer into a draft. Every method raises Refused or Unavailable for what is no reply."""

    builder: ReplyBuilder
    done: bool
    """The terminal event was seen: nothing more needs to be read."""
    complete: bool
    """The reply is whole, should the stream end here."""

    def event(self, name: str, data: bytes) -> None: ...
    def body(self, content: bytes) -> None:
        """The whole answer of a server that does not stream."""
        ...

    def finish(self) -> ReplyBuilder: ...


class Wire(Protocol):
    """One wire format, set up for one model."""

    url: str
    host: str

    def headers(self, past: ReasoningReplay) -> dict[str, str]: ...
    def render(self, prompt: Prompt, past: ReasoningReplay) -> bytes: ...
    def parser(self, emit: Emit) -> ReplyParser: ...
    def degrade(self, refusal: Refused) -> ReasoningReplay | None:
        """With how much less of the past this refused request may be taken; None when that is not the trouble."""
        ...


def endpoint_url(base: str, path: str) -> tuple[str, str]:
    """`(the URL to post to, its host)`. A base that already ends with the path is taken as it is."""
    url = base.rstrip("/")
    if not url.endswith(path):
        url += path
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise Refused(f"{base!r} is no address of a model: check `outrider config set model.url`")
    return url, parts.hostname + (f":{parts.port}" if parts.port else "")
