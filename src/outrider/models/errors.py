"""Classification of provider errors as Refused, Unavailable or ContextTooLong.

Every message is one bounded line without the API key.
"""

import re
from collections.abc import Callable, Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import TypeVar

import msgspec
from msgspec import Struct

from outrider.config.secrets import Secret
from outrider.core.errors import ContextTooLong, Refused, Unavailable
from outrider.core.text import clip

T = TypeVar("T")
DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Exceptions that decoding raises for malformed bytes."""

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
"""The HTTP status that belongs to an error name inside a stream; 500 for any other name."""


class ProviderRefused(Refused):
    """The provider rejects every request: wrong key, no credit, unknown model. Another provider may answer."""


class ProviderEndpoint(Struct, frozen=True):
    """The provider and model that an error message names."""

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
    endpoint: ProviderEndpoint, status: int, body: bytes, retry_after: float | None = None
) -> Refused | Unavailable:
    """The exception for an HTTP error response."""
    return _classify(endpoint, status, _error_in_body(body), retry_after)


def failure_in_stream(endpoint: ProviderEndpoint, error: object) -> Refused | Unavailable:
    """The exception for an error object inside a stream of status 200."""
    fault = _parse_error(error)
    return _classify(endpoint, _status_of(fault), fault, None)


def failure_in_body(endpoint: ProviderEndpoint, body: bytes) -> Refused | Unavailable | None:
    """The exception for an error in a body of status 200, or None if it has none."""
    try:
        envelope = _envelope(body)
    except DECODE_ERRORS:
        return None
    return failure_in_stream(endpoint, envelope.error) if envelope.error else None


def malformed_response(endpoint: ProviderEndpoint, content: str) -> Unavailable:
    """The exception for a response that does not follow the wire format."""
    return Unavailable(f"{endpoint.host} sent {safe_line(endpoint, content)}")


def decode_response(decode: Callable[[bytes], T], content: bytes, endpoint: ProviderEndpoint, name: str) -> T:
    """Decode a part of a response, which an error message calls by this name."""
    try:
        return decode(content)
    except DECODE_ERRORS as error:
        raise malformed_response(endpoint, f"an invalid {name} ({error})") from None


def safe_line(endpoint: ProviderEndpoint, text: str) -> str:
    """The text as one bounded line without the key."""
    key = endpoint.key.reveal()
    if len(key) >= _MIN_KEY:
        text = text.replace(key, "…")
    return clip(_KEYS.sub("…", text), _MAX_LINE)


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds to wait, from the response headers; `now` in seconds since 1970."""
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
    envelope = msgspec.json.decode(body, type=_Envelope | list[_Envelope])
    return envelope if isinstance(envelope, _Envelope) else next(iter(envelope), _Envelope())


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


def _classify(
    endpoint: ProviderEndpoint, status: int, fault: _ProviderError, wait: float | None
) -> Refused | Unavailable:
    host, model = endpoint.host, endpoint.model
    message = safe_line(endpoint, str(fault.message or ""))
    clue = f"{fault.code or ''} {fault.type or ''} {message}"
    detail = f": {message}" if message else ""
    if status in (400, 413, 422, 500) and _TOO_LONG.search(clue) and not _RATE.search(clue):
        return ContextTooLong(f"the prompt is too long for {model}{detail}")
    if status == 402 or (status in (400, 403, 429) and _QUOTA.search(clue)):
        return ProviderRefused(f"{host} requires payment ({status}){detail}")
    if status in (401, 403):
        state = "did not accept the key" if endpoint.key else "requires a key, and none is set"
        advice = "check it with `outrider config set model.key …` or OUTRIDER_MODEL_KEY"
        return ProviderRefused(f"{host} {state} ({status}); {advice}{detail if status == 403 else ''}")
    if status == 404 and _NO_MODEL.search(clue):
        return ProviderRefused(f"{host} has no model {model!r}{detail}")
    if status == 404:
        return ProviderRefused(
            f"{host} has nothing at this address (404); check model.url and the model {model!r}{detail}"
        )
    if status in (408, 409, 425, 429) or status >= 500:
        state = "is busy" if status in (429, 503, 529) else "failed"
        return Unavailable(f"{host} {state} ({status}){detail}", wait)
    if 300 <= status < 400:
        return Refused(f"{host} redirects to another address ({status}): check `outrider config set model.url`")
    return Refused(f"{host} refused the request ({status}){detail}")
