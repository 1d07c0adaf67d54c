"""Errors of ACP agents, each with what to do about it. Pure."""

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
_AUTH_REQUIRED = -32000
_TAIL = 2_000


def explain_stop(reason: str) -> str:
    """Why a prompt ended early; empty when it did not."""
    if reason in _NORMAL_STOPS:
        return ""
    unknown = f"the agent stopped for a reason that Outrider does not know: `{reason[:100]}`"
    return STOP_REASONS.get(reason) or (unknown if reason else "the agent did not say why it stopped")


def wants_login(error: RpcError) -> bool:
    text = error.message.lower()
    return error.code == _AUTH_REQUIRED or "authentication required" in text or "unauthorized" in text


def explain(
    error: RpcError | Refused | Unavailable, name: str, methods: tuple[AuthMethod, ...], redact: Callable[[str], str]
) -> Refused:
    """The error that a turn ends with."""
    if isinstance(error, RpcError) and wants_login(error):
        text = f"{name} requires a login: {_login_methods(methods)}. Then send your message again"
    elif isinstance(error, RpcError):
        text = f"{name}: {_describe_error(error)}"
    else:
        text = describe_exit(error) if isinstance(error, ProcessExited) else str(error)
    return Refused(redact(f"{text}; {USE_NATIVE_HINT}"))


def describe_exit(exited: ProcessExited) -> str:
    """The exit of the agent's process, with the end of its stderr."""
    tail = exited.stderr_tail.strip()
    return f"{exited}: {tail[-_TAIL:]}" if tail else str(exited)


def _describe_error(error: RpcError) -> str:
    details = b"" if error.data is None else bytes(error.data)
    if not details or details == b"null":
        return str(error)
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
