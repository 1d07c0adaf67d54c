"""What a provider's error means for us: Refused, Unavailable or ContextTooLong, in one line without the key."""

import re
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime

import msgspec
from msgspec import Struct

from outrider.config.choice import Secret
from outrider.core.errors import ContextTooLong, Refused, Unavailable

GARBAGE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding raises for bytes that are not what they should be."""

_LONGEST = 300
_SHORTEST_KEY = 4
_KEYS = re.compile(r"\b(sk|pk|gsk|xai|key)-[\w*.…-]{6,}")
_TOO_LONG = re.compile(
    r"prompt is too long|context[ _]length|context[ _]window|context[ _]size|context limit|maximum prompt length"
    r"|input is too long|too many (input )?tokens in|input token count .* exceeds|exceeds? the maximum number of tokens"
    r"|reduce the length of the (messages|prompt|input)|request_too_large|too large for model with",
    re.IGNORECASE | re.DOTALL,
)
_QUOTA = re.compile(
    r"insufficient[ _](quota|balance|credit|funds)|credit balance|billing|exceeded your current quota", re.I
)
_RATE = re.compile(r"rate[ _]limit|per minute|tokens per", re.IGNORECASE)
_NO_MODEL = re.compile(r"model", re.IGNORECASE)
_MEANINGS = {
    "authentication_error": 401,
    "invalid_api_key": 401,
    "permission_error": 403,
    "billing_error": 402,
    "insufficient_quota": 402,
    "not_found_error": 404,
    "model_not_found": 404,
    "invalid_request_error": 400,
    "invalid_prompt": 400,
    "context_length_exceeded": 400,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "timeout_error": 504,
    "overloaded_error": 529,
}
"""Names of errors that arrive inside a stream, as the status they would have had; any other counts as 500."""


class NotServed(Refused):
    """This provider will not answer us at all: wrong key, no credit, no such model. Another provider may."""


class Peer(Struct, frozen=True):
    """Whom we talk to, as far as an error needs to say."""

    host: str
    model: str
    key: Secret = Secret("")


class _Fault(Struct):
    message: object = None
    type: object = None
    code: object = None


class _Envelope(Struct):
    error: object = None
    message: object = None
    detail: object = None


def failure(peer: Peer, status: int, body: bytes, retry_after: float | None = None) -> Refused | Unavailable:
    """What an HTTP error means."""
    fault = _fault(body)
    return _meaning(peer, status, fault, retry_after)


def failure_inside(peer: Peer, error: object) -> Refused | Unavailable:
    """What an error object inside a stream of status 200 means."""
    fault = _fault_of(error)
    return _meaning(peer, _status_of(fault), fault, None)


def failure_in(peer: Peer, body: bytes) -> Refused | Unavailable | None:
    """What this body of status 200 complains about, or None when it is not a complaint."""
    try:
        envelope = _envelope(body)
    except GARBAGE:
        return None
    return failure_inside(peer, envelope.error) if envelope.error else None


def garbled(peer: Peer, found: str) -> Unavailable:
    """The provider sent something that is not its own wire format."""
    return Unavailable(f"{peer.host} sent {one_line(peer, found)}")


def one_line(peer: Peer, text: str) -> str:
    """Fit for an error: one line, bounded, without the key."""
    key = peer.key.reveal()
    if len(key) >= _SHORTEST_KEY:
        text = text.replace(key, "…")
    flat = " ".join(_KEYS.sub("…", text).split())
    return flat if len(flat) <= _LONGEST else flat[: _LONGEST - 2] + " …"


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """How long the provider asks us to wait, in seconds; `now` in seconds since 1970."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        text = headers.get(name, "").strip()
        if re.fullmatch(r"\d+(\.\d+)?", text):
            return float(text) * unit
        if text and unit == 1.0:
            return _until(text, now)
    return None


def _until(date: str, now: float) -> float | None:
    try:
        moment = parsedate_to_datetime(date)
    except ValueError:
        return None
    return max(0.0, (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() - now)


def _envelope(body: bytes) -> _Envelope:
    found = msgspec.json.decode(body, type=_Envelope | list[_Envelope])
    return found if isinstance(found, _Envelope) else next(iter(found), _Envelope())


def _fault(body: bytes) -> _Fault:
    try:
        envelope = _envelope(body)
    except GARBAGE:
        text = body[:4096].decode("utf-8", "replace")
        return _Fault(message="" if "<html" in text.lower() or "<!doctype" in text.lower() else text)
    return _fault_of(envelope.error or envelope.message or envelope.detail)


def _fault_of(error: object) -> _Fault:
    if isinstance(error, str):
        return _Fault(message=error)
    try:
        fault = msgspec.convert(error, _Fault)
    except msgspec.ValidationError:
        return _Fault(message=str(error) if error else "")
    return fault if fault.message else _Fault(str(error), fault.type, fault.code)


def _status_of(fault: _Fault) -> int:
    for name in (fault.code, fault.type):
        if isinstance(name, int) and 400 <= name < 600:
            return name
        if isinstance(name, str) and name in _MEANINGS:
            return _MEANINGS[name]
    return 500


def _meaning(peer: Peer, status: int, fault: _Fault, wait: float | None) -> Refused | Unavailable:
    said = one_line(peer, str(fault.message or ""))
    clue = f"{fault.code or ''} {fault.type or ''} {said}"
    told = f": {said}" if said else ""
    if status in (400, 413, 422, 500) and _TOO_LONG.search(clue) and not _RATE.search(clue):
        return ContextTooLong(f"the prompt is too long for {peer.model}{told}")
    if status == 402 or (status in (400, 403, 429) and _QUOTA.search(clue)):
        return NotServed(f"{peer.host} wants to be paid first{told}")
    if status in (401, 403):
        return _locked_out(peer, status, told if status == 403 else "")
    if status == 404:
        return _missing(peer, clue, told)
    if status in (408, 409, 425, 429) or status >= 500:
        return Unavailable(f"{peer.host} {_plight(status)} ({status}){told}", wait)
    if 300 <= status < 400:
        return Refused(f"{peer.host} points elsewhere ({status}): check `outrider config set model.url`")
    return Refused(f"{peer.host} refused the request ({status}){told}")


def _plight(status: int) -> str:
    return "is busy" if status in (429, 503, 529) else "failed"


def _locked_out(peer: Peer, status: int, told: str) -> NotServed:
    state = "did not accept the key" if peer.key else "wants a key and none is set"
    advice = "check it with `outrider config set model.key …` or OUTRIDER_MODEL_KEY"
    return NotServed(f"{peer.host} {state} ({status}); {advice}{told}")


def _missing(peer: Peer, clue: str, told: str) -> NotServed:
    if _NO_MODEL.search(clue):
        return NotServed(f"{peer.host} has no model {peer.model!r}{told}")
    return NotServed(
        f"{peer.host} has nothing at this address (404); check model.url and the model {peer.model!r}{told}"
    )
