"""Lines and what they say: JSON-RPC messages parsed from one line each, and rendered to one. Pure."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from outrider.runtimes.jsonrpc.errors import RpcError

RequestId = int | str
"""Of a request that the other side sent. Its ids have nothing to do with ours, and 0 is one of them."""
Version = Literal["", "2.0"]
"""The `jsonrpc` key of what we write; left out when empty."""

METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603

_NULL = Raw(b"null")
_ESCAPE = re.compile(rb"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|(u[dD][89a-fA-F]..)|.)", re.DOTALL)
"""One escape in a JSON string; a pair of surrogates is one, and half a pair is the group."""


class RpcRequest(Struct, frozen=True):
    """The other side wants an answer: `Peer.answer` or `Peer.refuse`, with this id."""

    id: RequestId
    method: str
    params: Raw
    """`null` when there were none."""


class RpcNotification(Struct, frozen=True):
    """The other side tells something."""

    method: str
    params: Raw
    """`null` when there were none."""


class RpcResponse(Struct, frozen=True):
    """To a request of ours."""

    id: RequestId | None
    outcome: Raw | RpcError


RpcMessage = RpcRequest | RpcNotification


class _WireMessage(Struct):
    id: int | str | None = None
    method: str | UnsetType = UNSET
    params: Raw = _NULL
    result: Raw | UnsetType = UNSET
    error: Raw = _NULL


class _WireError(Struct):
    code: int
    message: str = ""
    data: Raw | UnsetType = UNSET


_message_decoder = msgspec.json.Decoder(_WireMessage)
_error_decoder = msgspec.json.Decoder(_WireError)
_encode = msgspec.json.Encoder().encode


def parse_message(line: bytes) -> RpcMessage | RpcResponse:
    """What a line says. Text that is no Unicode is mended with U+FFFD. Raises `msgspec.DecodeError` for nonsense."""
    found = _message_decoder.decode(repair_unicode(line))
    if found.method is UNSET:
        if found.result is UNSET and bytes(found.error) == b"null":
            raise msgspec.ValidationError("neither a method, nor a result, nor an error")
        return RpcResponse(found.id, _outcome(found))
    if found.id is None:
        return RpcNotification(found.method, found.params)
    return RpcRequest(found.id, found.method, found.params)


def render_message(message: Mapping[str, object], version: Version = "") -> bytes:
    """One line, its end included: valid UTF-8 with no half of a surrogate pair, which some readers drop unheard."""
    whole = {"jsonrpc": version, **message} if version else message
    try:
        line = _encode(whole)
    except UnicodeEncodeError:
        line = _encode(_replace_surrogates(msgspec.to_builtins(whole, builtin_types=(Raw,))))
    # A newline can stand in a `Raw` of the caller's only, between two words: within strings it is escaped.
    return repair_unicode(line).replace(b"\n", b" ") + b"\n"


def repair_unicode(text: bytes) -> bytes:
    """JSON with everything that is not Unicode replaced by U+FFFD; the same bytes when there is nothing of the kind."""
    if not text.isascii():
        try:
            text.decode()
        except UnicodeDecodeError:
            text = text.decode(errors="replace").encode()
    if b"\\ud" in text or b"\\uD" in text:
        text = _ESCAPE.sub(lambda found: rb"\ufffd" if found[1] else found[0], text)
    return text


def _outcome(line: _WireMessage) -> Raw | RpcError:
    if bytes(line.error) == b"null":
        return _NULL if line.result is UNSET else line.result
    try:
        error = _error_decoder.decode(line.error)
    except msgspec.DecodeError:
        # Whatever shape it has: the request it answers must not wait any longer.
        return RpcError(INTERNAL_ERROR, "an error that is not one of JSON-RPC", line.error)
    return RpcError(error.code, error.message, None if error.data is UNSET else error.data)


def _replace_surrogates(value: Any) -> Any:
    match value:
        case str():
            # By way of UTF-16, so that two halves that belong together become one again.
            return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        case dict():
            pairs = cast("dict[Any, Any]", value).items()
            return {_replace_surrogates(key): _replace_surrogates(inner) for key, inner in pairs}
        case list() | tuple():
            return [_replace_surrogates(inner) for inner in cast("Sequence[Any]", value)]
        case _:
            return value
