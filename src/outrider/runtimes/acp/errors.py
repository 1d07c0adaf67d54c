"""What went wrong with an ACP agent, in words that say what to do about it. Pure."""

from collections.abc import Callable

import msgspec

from outrider.core.errors import Refused, Unavailable
from outrider.runtimes.acp.protocol import AuthMethod
from outrider.runtimes.jsonrpc.errors import ProcessExited, RpcError

USE_NATIVE_HINT = "`/runtime native` (or `outrider run --runtime native`) goes on without it"
NO_COMMAND = (
    "say which agent carries turns: `outrider config set acp.command claude-agent-acp`, or any other program that"
    f" speaks ACP over its stdin and stdout; {USE_NATIVE_HINT}"
)
CANNOT_RESUME = (
    "this agent cannot take up a session, so the turn that was cut off cannot go on. What it had done is kept; "
    "say what to do next, and a new session of the agent begins with that"
)
STOP_REASONS = {
    "max_tokens": "the agent's model reached its length limit",
    "max_turn_requests": "the agent reached its own limit of steps in one turn",
    "refusal": "the agent refused to go on",
}
"""Why a prompt ended early, by its stop reason."""
_AUTH_REQUIRED = -32000
_TAIL = 2_000


def wants_login(error: RpcError) -> bool:
    said = error.message.lower()
    return error.code == _AUTH_REQUIRED or "authentication required" in said or "unauthorized" in said


def explain(
    error: RpcError | Refused | Unavailable, name: str, methods: tuple[AuthMethod, ...], redact: Callable[[str], str]
) -> Refused:
    """The end of a turn that met this error."""
    if isinstance(error, RpcError) and wants_login(error):
        return Refused(
            redact(f"{name} wants you to log in: {_login_methods(methods)}. Then say it again; {USE_NATIVE_HINT}")
        )
    if isinstance(error, RpcError):
        said = f"{name}: {_describe_error(error)}"
    else:
        said = describe_exit(error) if isinstance(error, ProcessExited) else str(error)
    return Refused(redact(f"{said}; {USE_NATIVE_HINT}"))


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
    ways = [
        method.name or method.id if not method.description else f"{method.name or method.id} ({method.description})"
        for method in methods
    ]
    return " or ".join(ways) or "with its own program"


def describe_exit(gone: ProcessExited) -> str:
    """The end of the agent's process, with the last it said."""
    tail = gone.stderr_tail.strip()
    return f"{gone}: {tail[-_TAIL:]}" if tail else str(gone)
