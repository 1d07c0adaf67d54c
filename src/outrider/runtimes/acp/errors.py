"""Errors of ACP agents, each with what to do about it. Pure."""

import re
from collections.abc import Callable

import msgspec

from outrider.core.errors import Refused, Unavailable
from outrider.runtimes.acp.protocol import AuthMethod
from outrider.runtimes.jsonrpc.errors import ProcessExited, RpcError

USE_NATIVE_HINT = "`/runtime native` (or `outrider run --runtime native`) continues without it"
NO_COMMAND = (
    "no agent is set: `outrider config set acp.command claude-agent-acp`, or any other program that"
    f" speaks ACP over its stdin and stdout; {USE_NATIVE_HINT}"
)
CANNOT_RESUME = (
    "this agent cannot resume a session, so the interrupted turn cannot continue. What it did is kept; "
    "send another message to start a new session of the agent with it"
)
STOP_REASONS = {
    "max_tokens": "the agent's model reached its length limit",
    "max_turn_requests": "the agent reached its own limit of steps in one turn",
    "refusal": "the agent refused to continue",
}
"""Why a prompt ended early, by its stop reason."""
_NORMAL_STOPS = {"end_turn", "cancelled"}
AUTH_REQUIRED = -32000
MAX_LOGIN_TEXT = 1_000
"""Characters of a message that may be nothing but an error."""
_UNAUTHORIZED = 401
_TAIL = 2_000
_STATUS_401 = r"(?:HTTP|status|error|code)(?:[ _](?:status|error|code))*\W{1,4}401\b|\b401\W{1,3}unauthori[sz]ed"
_BAD_KEY = (
    r"(?:invalid|incorrect|bad|wrong|expired|revoked|missing) (?:x-)?(?:api[ _-]?)?key|api[ _-]key (?:is )?not valid"
)
_NO_LOGIN = (
    r"authentication (?:is )?(?:required|failed|error)|failed to authenticate|unauthori[sz]ed|unauthenticated"
    r"|api_key_invalid|not (?:logged|signed) in|please (?:log|sign) in|(?:log|sign) in again|please run \S*\blogin"
)
_LOGIN_ERROR = re.compile(f"{_STATUS_401}|{_BAD_KEY}|{_NO_LOGIN}", re.IGNORECASE)
_LOGIN_MESSAGE = re.compile(
    rf"\W*(?:(?:API|LLM|model|request|provider) )?(?:{_STATUS_401}|{_BAD_KEY}|{_NO_LOGIN})", re.IGNORECASE
)


def explain_stop(reason: str) -> str:
    """Why a prompt ended early; empty when it did not."""
    if reason in _NORMAL_STOPS:
        return ""
    unknown = f"the agent stopped for a reason that Outrider does not know: `{reason[:100]}`"
    return STOP_REASONS.get(reason) or (unknown if reason else "the agent did not say why it stopped")


def wants_login(error: RpcError) -> bool:
    """Whether the agent, or the provider of its model, rejected its login or its key."""
    if error.code in (AUTH_REQUIRED, _UNAUTHORIZED):
        return True
    return bool(_LOGIN_ERROR.search(_describe_error(error)))


def is_login_message(text: str) -> bool:
    """Whether a whole message, or a line of a log, is an error about the login and nothing else."""
    return len(text) <= MAX_LOGIN_TEXT and bool(_LOGIN_MESSAGE.match(text))


def find_login_errors(log: str) -> list[str]:
    """The lines of a log with the status 401, or with the rejection of a key."""
    return [line.strip()[:MAX_LOGIN_TEXT] for line in log.splitlines() if _LOGIN_ERROR.search(line)]


def explain(
    error: RpcError | Refused | Unavailable, name: str, methods: tuple[AuthMethod, ...], redact: Callable[[str], str]
) -> Refused:
    """The error that a turn ends with."""
    if isinstance(error, RpcError) and wants_login(error):
        detail = "" if _is_plain(error) else f" (it said: {_describe_error(error)[:MAX_LOGIN_TEXT]})"
        text = f"{name} requires a login: {_login_methods(methods)}. Then send your message again{detail}"
    elif isinstance(error, RpcError):
        text = f"{name}: {_describe_error(error)}"
    else:
        text = describe_exit(error) if isinstance(error, ProcessExited) else str(error)
    return Refused(redact(f"{text}; {USE_NATIVE_HINT}"))


def _is_plain(error: RpcError) -> bool:
    """Whether it says nothing but that a login is required."""
    return error.message.strip(". ").lower() in ("", "authentication required") and not _has_details(error)


def describe_exit(exited: ProcessExited) -> str:
    """The exit of the agent's process, with the end of its stderr."""
    tail = exited.stderr_tail.strip()
    return f"{exited}: {tail[-_TAIL:]}" if tail else str(exited)


def _has_details(error: RpcError) -> bool:
    return error.data is not None and bytes(error.data) not in (b"", b"null", b"{}")


def _describe_error(error: RpcError) -> str:
    if not _has_details(error):
        return str(error)
    details = bytes(error.data or b"")
    try:
        value = msgspec.json.decode(details)
    except msgspec.DecodeError:
        value = details.decode(errors="replace")
    return f"{error}: {value if isinstance(value, str) else details.decode(errors='replace')}"[:_TAIL]


def _login_methods(methods: tuple[AuthMethod, ...]) -> str:
    names = [
        method.name or method.id if not method.description else f"{method.name or method.id} ({method.description})"
        for method in methods
    ]
    return " or ".join(names) or "with its own program"
