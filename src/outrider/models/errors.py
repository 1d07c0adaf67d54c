"""What a provider's error means for us: Refused, Unavailable or ContextTooLong, in one line without the key."""

import re
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime

import msgspec
from msgspec import Struct

from outrider.config.secrets import Secret
from outrider.core.errors import ContextTooLong, Refused, Unavailable

DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding raises for bytes that are not what they should be."""

_MAX_LINE = 300
_MIN_KEY = 4
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
_STATUS_OF_ERROR = {
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


class ProviderRefused(Refused):
    """This provider will not answer us at all: wrong key, no credit, no such model. Another provider may."""


class ProviderEndpoint(Struct, frozen=True):
    """Whom we talk to, as far as an error needs to say."""

    host: str
    model: str
    key: Secret = Secret("")


class _ProviderError(Struct):
    message: object = None
    type: object = None
    code: object = None


class _Envelope(Struct):
    error: object = None
    message: object = None
    detail: object = None


def failure(
    peer: ProviderEndpoint, status: int, body: bytes, retry_after: float | None = None
) -> Refused | Unavailable:
    """What an HTTP error means."""
    fault = _error_in_body(body)
    return _classify(peer, status, fault, retry_after)


def failure_in_stream(peer: ProviderEndpoint, error: object) -> Refused | Unavailable:
    """What an error object inside a stream of status 200 means."""
    fault = _parse_error(error)
    return _classify(peer, _status_of(fault), fault, None)


def failure_in_body(peer: ProviderEndpoint, body: bytes) -> Refused | Unavailable | None:
    """What this body of status 200 complains about, or None when it is not a complaint."""
    try:
        envelope = _envelope(body)
    except DECODE_ERRORS:
        return None
    return failure_in_stream(peer, envelope.error) if envelope.error else None


def malformed_response(peer: ProviderEndpoint, found: str) -> Unavailable:
    """The provider sent something that is not its own wire format."""
    return Unavailable(f"{peer.host} sent {safe_line(peer, found)}")


def safe_line(peer: ProviderEndpoint, text: str) -> str:
    """Fit for an error: one line, bounded, without the key."""
    key = peer.key.reveal()
    if len(key) >= _MIN_KEY:
        text = text.replace(key, "…")
    flat = " ".join(_KEYS.sub("…", text).split())
    return flat if len(flat) <= _MAX_LINE else flat[: _MAX_LINE - 2] + " …"


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


def _error_in_body(body: bytes) -> _ProviderError:
    try:
        envelope = _envelope(body)
    except DECODE_ERRORS:
        text = body[:4096].decode("utf-8", "replace")
        return _ProviderError(message="" if "<html" in text.lower() or "<!doctype" in text.lower() else text)
    return _parse_error(envelope.error or envelope.message or envelope.detail)


def _parse_error(error: object) -> _ProviderError:
    if isinstance(error, str):
        return _ProviderError(message=error)
    try:
        fault = msgspec.convert(error, _ProviderError)
    except msgspec.ValidationError:
        return _ProviderError(message=str(error) if error else "")
    return fault if fault.message else _ProviderError(str(error), fault.type, fault.code)


def _status_of(fault: _ProviderError) -> int:
    for name in (fault.code, fault.type):
        if isinstance(name, int) and 400 <= name < 600:
            return name
        if isinstance(name, str) and name in _STATUS_OF_ERROR:
            return _STATUS_OF_ERROR[name]
    return 500


def _classify(peer: ProviderEndpoint, status: int, fault: _ProviderError, wait: float | None) -> Refused | Unavailable:
    said = safe_line(peer, str(fault.message or ""))
    clue = f"{fault.code or ''} {fault.type or ''} {said}"
    told = f": {said}" if said else ""
    if status in (400, 413, 422, 500) and _TOO_LONG.search(clue) and not _RATE.search(clue):
        return ContextTooLong(f"the prompt is too long for {peer.model}{told}")
    if status == 402 or (status in (400, 403, 429) and _QUOTA.search(clue)):
        return ProviderRefused(f"{peer.host} wants to be paid first{told}")
    if status in (401, 403):
        return _not_authorized(peer, status, told if status == 403 else "")
    if status == 404:
        return _not_found_error(peer, clue, told)
    if status in (408, 409, 425, 429) or status >= 500:
        return Unavailable(f"{peer.host} {_status_words(status)} ({status}){told}", wait)
    if 300 <= status < 400:
        return Refused(f"{peer.host} points elsewhere ({status}): check `outrider config set model.url`")
    return Refused(f"{peer.host} refused the request ({status}){told}")


def _status_words(status: int) -> str:
    return "is busy" if status in (429, 503, 529) else "failed"


def _not_authorized(peer: ProviderEndpoint, status: int, message: str) -> ProviderRefused:
    state = "did not accept the key" if peer.key else "wants a key and none is set"
    advice = "check it with `outrider config set model.key …` or OUTRIDER_MODEL_KEY"
    return ProviderRefused(f"{peer.host} {state} ({status}); {advice}{message}")


def _not_found_error(peer: ProviderEndpoint, clue: str, message: str) -> ProviderRefused:
    if _NO_MODEL.search(clue):
        return ProviderRefused(f"{peer.host} has no model {peer.model!r}{message}")
    return ProviderRefused(
        f"{peer.host} has nothing at this address (404); check model.url and the model {peer.model!r}{message}"
    )
