"""Tests of the classification of provider errors."""

import json

import pytest

from outrider.config.secrets import Secret
from outrider.core.errors import ContextTooLong, Refused, Unavailable
from outrider.models.errors import ProviderEndpoint, ProviderRefused, failure, retry_after

ENDPOINT = ProviderEndpoint("api.test", "m-1", Secret("topsecretkey"))


def body(message: str, **rest: object) -> bytes:
    return json.dumps({"error": {"message": message, **rest}}).encode()


@pytest.mark.parametrize(
    ("status", "content", "kind", "text"),
    [
        (400, body("bad field"), Refused, "api.test refused the request (400): bad field"),
        (422, b'{"detail":[{"msg":"extra"}]}', Refused, "api.test refused the request (422): [{'msg': 'extra'}]"),
        (
            401,
            body("Incorrect API key provided: sk-abc***xyz"),
            ProviderRefused,
            "api.test did not accept the key (401); check it with `outrider config set model.key …` or "
            "OUTRIDER_MODEL_KEY",
        ),
        (
            403,
            body("Country not supported, topsecretkey"),
            ProviderRefused,
            "api.test did not accept the key (403); check it with `outrider config set model.key …` or "
            "OUTRIDER_MODEL_KEY: Country not supported, …",
        ),
        (400, b'[{"error":{"code":400,"message":"no"}}]', Refused, "api.test refused the request (400): no"),
        (402, b"", ProviderRefused, "api.test requires payment (402)"),
        (429, body("You exceeded your current quota", code="insufficient_quota"), ProviderRefused, None),
        (400, body("Your credit balance is too low to access the API."), ProviderRefused, None),
        (404, body("no", code="model_not_found"), ProviderRefused, "api.test has no model 'm-1': no"),
        (404, b"<html>Not Found</html>", ProviderRefused, None),
        (408, b"", Unavailable, "api.test failed (408)"),
        (409, b"", Unavailable, "api.test failed (409)"),
        (429, body("slow\ndown"), Unavailable, "api.test is busy (429): slow down"),
        (500, b"<html><body>oops</body></html>", Unavailable, "api.test failed (500)"),
        (503, b"\xff\xfe", Unavailable, None),
        (529, b'{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}', Unavailable, None),
        (302, b"", Refused, None),
    ],
)
def test_a_status_is_classified_with_a_message(
    status: int, content: bytes, kind: type[Exception], text: str | None
) -> None:
    error = failure(ENDPOINT, status, content)
    assert type(error) is kind
    if text is not None:
        assert str(error) == text
    assert "topsecretkey" not in str(error)
    assert "sk-abc" not in str(error)


@pytest.mark.parametrize(
    ("status", "content"),
    [
        (400, body("too big", code="context_length_exceeded")),
        (400, body("This model's maximum context length is 8192 tokens. However, your messages resulted in 9000.")),
        (400, body("Your input exceeds the context window of this model.")),
        (400, body("prompt is too long: 214850 tokens > 200000 maximum", type="invalid_request_error")),
        (400, body("input length and `max_tokens` exceed context limit: 199000 + 8192 > 200000")),
        (400, body("the request exceeds the available context size", type="exceed_context_size_error")),
        (400, body("The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).")),
        (400, body("This model's maximum prompt length is 131072 but the request contains 140000 tokens.")),
        (400, b'{"object":"error","message":"Prompt contains 40000 tokens, too large for model with 32768 maximum"}'),
        (413, body("Request exceeds the maximum size", type="request_too_large")),
    ],
)
def test_an_overflow_is_recognised_on_every_wire(status: int, content: bytes) -> None:
    assert type(failure(ENDPOINT, status, content)) is ContextTooLong


def test_a_limit_of_tokens_per_minute_is_not_an_overflow() -> None:
    error = failure(ENDPOINT, 429, body("Rate limit: too many tokens in the context window per minute"))
    assert type(error) is Unavailable


def test_a_missing_key_is_named_as_missing() -> None:
    assert "requires a key, and none is set" in str(failure(ProviderEndpoint("h", "m"), 401, b""))


def test_an_error_is_one_bounded_line() -> None:
    text = str(failure(ENDPOINT, 400, body("x\n" * 5000)))
    assert len(text) < 360
    assert "\n" not in text


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after-ms": "250", "retry-after": "7"}, 0.25),
        ({"retry-after": "Thu, 01 Jan 1970 00:16:50 GMT"}, 10.0),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:00 GMT"}, 0.0),
        ({"retry-after": "soon"}, None),
    ],
)
def test_the_retry_after_headers_are_parsed(headers: dict[str, str], expected: float | None) -> None:
    assert retry_after(headers, now=1000.0) == expected
