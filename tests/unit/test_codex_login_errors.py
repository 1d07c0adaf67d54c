"""Which errors of Codex mean that its login was rejected: these, and no others."""

import pytest

from outrider.runtimes.codex.errors import deadline_reached, is_login_error, process_exited, render_retry, turn_failed
from outrider.runtimes.codex.protocol import CodexError
from outrider.runtimes.jsonrpc.errors import ProcessExited

_HINT = "run `codex login`"


@pytest.mark.behaviour("A13")
@pytest.mark.parametrize(
    "text",
    [
        "unexpected status 401 Unauthorized: Missing bearer authentication, url: https://a.test/v1/responses",
        "unexpected status 401 Unauthorized",
        "exceeded retry limit, last status: 401 Unauthorized, request id: x",
        "HTTP 401",
        "HTTP/1.1 401",
        "http status: 401",
        "HTTP error: 401 from the token endpoint",
        "status code 401",
        "status=401",
        "401 (Unauthorized)",
        "Unauthorized",
        "error: unauthorized.",
        "Unauthorized: your key was deleted",
        '{"error": "invalid_grant"}',
        "refresh_token_expired",
        "refresh_token_reused",
        "Your access token could not be refreshed because your refresh token was revoked.",
        "Your access token could not be refreshed because your refresh token was already used.",
        "Please log out and sign in again.",
        "Not logged in",
        "token_revoked",
        '{"httpStatusCode":401}',
        "2026-11-16T00:00:00Z ERROR codex_login: Failed to refresh token: 401 Unauthorized",
    ],
)
def test_a_rejected_login_is_recognized(text: str) -> None:
    assert is_login_error(text)
    assert _HINT in str(process_exited(ProcessExited("codex", 1, 0, f"{text}\n")))


@pytest.mark.behaviour("A13")
@pytest.mark.parametrize(
    "text",
    [
        "SyntaxError on line 401",
        "src/main.rs:401:7: expected `;`",
        "exit code 401",
        "the prompt has 401 messages, at most 400 are allowed",
        "port 401 is in use",
        "request id 401-77",
        "https://a.test/status/401",
        "unexpected status 400 Bad Request: invalid value at position 401",
        "unexpected status 403 Forbidden: unauthorized access to this model is logged",
        "unexpected status 4010",
        "status 14011",
        "Reconnecting... 1/5",
        "exceeded retry limit, last status: 429 Too Many Requests",
        "the context window has 401k tokens",
        "refresh the token list first",
        "ERROR rmcp::transport: MCP server `tickets`: 401 Unauthorized",
        "model is asleep",
        "",
    ],
)
def test_other_errors_are_no_rejected_login(text: str) -> None:
    assert not is_login_error(text)
    assert _HINT not in str(turn_failed(CodexError(text)))
    assert _HINT not in str(process_exited(ProcessExited("codex", 1, 0, f"{text}\n")))


@pytest.mark.behaviour("A13")
@pytest.mark.parametrize(
    ("info", "is_login"),
    [
        ("unauthorized", True),
        ({"httpConnectionFailed": {"httpStatusCode": 401}}, True),
        ({"responseStreamDisconnected": {"httpStatusCode": 401}}, True),
        ({"httpConnectionFailed": {"httpStatusCode": 403}}, False),
        ({"responseTooManyFailedAttempts": {"httpStatusCode": 429}}, False),
        ("usageLimitExceeded", False),
        ({"activeTurnNotSteerable": {"turnKind": 401}}, False),
        (401, False),
        (None, False),
    ],
)
def test_the_kind_of_an_error_tells_too(info: object, is_login: bool) -> None:
    error = CodexError("it failed", info)
    texts = (str(turn_failed(error)), deadline_reached("too late", error, 0.0), render_retry(error))
    assert [_HINT in text for text in texts] == [is_login] * 3
    assert all("it failed" in text for text in texts)


@pytest.mark.behaviour("A10")
@pytest.mark.parametrize(
    ("error", "silent", "reason"),
    [
        (None, 0.2, "too late. To continue"),
        (None, 42.4, "too late. Codex had waited for a reply of its model for 42 s. To continue"),
        (
            CodexError("Reconnecting... 2/5", None, "exceeded retry limit, last status: 429"),
            42.0,
            "too late. The last error of Codex: Reconnecting... 2/5 (exceeded retry limit, last",
        ),
    ],
)
def test_a_turn_that_takes_too_long_says_what_it_waited_for(
    error: CodexError | None, silent: float, reason: str
) -> None:
    assert deadline_reached("too late", error, silent).startswith(reason)
