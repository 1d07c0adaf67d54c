"""Failures of a remote agent, in the words that the person reads. Pure."""

from collections.abc import Callable
from http import HTTPStatus

import msgspec
from msgspec import Struct

from outrider.core.text import clip

NO_URL = (
    "no other agent is set: `outrider config set remote.url https://…`, or OUTRIDER_REMOTE_URL; "
    "`outrider runtime use native` runs turns here"
)
PARTIAL = "partial: the connection ended before the reply did"
"""`Reply.cut` of a reply that did not arrive completely."""
RETRY_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses after which a request that may be repeated is repeated."""
_MAX_MESSAGE = 500
DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding raises for malformed bytes."""


class RemoteFailed(Exception):
    """A request to the remote agent failed. The text is what the person reads as the reply."""

    def __init__(self, words: str, status: int = 0) -> None:
        """`status` is 0 when there was no complete response."""
        super().__init__(words)
        self.status = status

    @property
    def may_pass(self) -> bool:
        """Whether the same request may succeed later."""
        return not self.status or self.status in RETRY_STATUSES


def status_failure(status: int, body: bytes, redact: Callable[[str], str]) -> RemoteFailed:
    """The failure for a response with an error status."""
    message = clip(redact(error_message(body)), _MAX_MESSAGE) or _phrase(status)
    if 300 <= status < 400:
        message = "it redirects to another address, which is not followed; check remote.url"
    return RemoteFailed(f"Remote error ({status}): {message}", status)


def content_failure(status: int, message: str, redact: Callable[[str], str]) -> RemoteFailed:
    """The failure for a response whose content is not what it should be."""
    return RemoteFailed(f"Remote error ({status}): {clip(redact(message), _MAX_MESSAGE)}", status)


def connection_failure(reason: str, redact: Callable[[str], str]) -> RemoteFailed:
    return RemoteFailed(f"Remote connection error: {clip(redact(reason), _MAX_MESSAGE)}")


class _ErrorBody(Struct):
    error: object = None
    message: object = None
    detail: object = None


def error_message(body: bytes) -> str:
    """The message in the body of an error response; empty for a web page."""
    try:
        envelope = msgspec.json.decode(body, type=_ErrorBody)
    except DECODE_ERRORS:
        text = body[:4096].decode("utf-8", "replace").strip()
        return "" if "<html" in text.lower() or "<!doctype" in text.lower() else text
    return message_of(envelope.error or envelope.message or envelope.detail)


def message_of(error: object) -> str:
    """The message of an error object, or the error as text."""
    try:
        message = msgspec.convert(error, _ErrorBody).message
    except msgspec.ValidationError:
        message = None
    return str(message or error or "")


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "no message"
