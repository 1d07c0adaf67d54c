"""Errors of the Codex runtime, each with what to do about it. Pure."""

import re

import msgspec

from outrider.core.errors import Unavailable
from outrider.runtimes.codex.protocol import CodexError
from outrider.runtimes.jsonrpc.connection import METHOD_NOT_FOUND
from outrider.runtimes.jsonrpc.errors import ProcessExited, RpcError

USE_NATIVE_HINT = "To continue without Codex: `/runtime native` in the chat, or `outrider run --runtime native`."
LOGIN_HINT = "Codex is not logged in, or its login has expired: run `codex login`, then send your message again."
_MAX_MESSAGE = 2_000
_TAIL = 1_000
_LONG_SILENCE = 5.0
"""Seconds. A shorter wait for the model is usual."""
_LOGIN_ERROR = re.compile(
    r"invalid_grant|refresh[ _]token[^.\n]{0,80}(expired|already used|reused|revoked|invalid)"
    r"|token could not be refreshed|not logged in|please (log|sign) ?in|sign in again"
    r"|token[_ ](expired|revoked|invalidated)|missing bearer"
    # The status of a response, and no other number 401.
    r"|\b401\b[\s:(-]{0,3}unauthori[sz]ed|(http|status)([ /_-]?(status|code|error|\d(\.\d)?))*\"?[\s:=(]{1,3}401\b"
    # The word alone, as the last one or before a colon. It also occurs in sentences about other things.
    r"|\bunauthori[sz]ed\b(?=\"|\W*$|:)",
    re.IGNORECASE | re.MULTILINE,
)
_MCP = re.compile("mcp", re.IGNORECASE)
"""In lines about an MCP server, which has a login of its own."""


class CodexFailed(Unavailable):
    """The turn failed; the text is for the person."""


def is_login_error(text: str) -> bool:
    """Whether the text says that Codex's credentials were rejected."""
    return any(_LOGIN_ERROR.search(line) and not _MCP.search(line) for line in text.splitlines())


def is_unknown_method(error: RpcError) -> bool:
    """Whether this Codex does not have the requested method."""
    return error.code == METHOD_NOT_FOUND or "unknown variant" in error.message or "unknown method" in error.message


def codex_failed(what: str, evidence: str = "") -> CodexFailed:
    """An error with this text and a hint; a rejected login is recognized in `evidence`, too."""
    what = what.strip()[:_MAX_MESSAGE] or "Codex failed and gave no reason."
    if is_login_error(f"{what}\n{evidence}"):
        what = f"{LOGIN_HINT} Codex said: {what}"
    end = "" if what.endswith((".", "!", "?", "`")) else "."
    return CodexFailed(f"{what}{end} {USE_NATIVE_HINT}")


def not_logged_in() -> CodexFailed:
    return CodexFailed(f"{LOGIN_HINT} {USE_NATIVE_HINT}")


def bad_settings(what: str) -> CodexFailed:
    return codex_failed(f"Codex cannot read its own settings: {what}. Correct that, then send your message again")


def turn_failed(error: CodexError | None) -> CodexFailed:
    """A turn that Codex ended with the status `failed`."""
    if error is None:
        return codex_failed("Codex ended the turn as failed and gave no reason")
    return codex_failed(_describe(error), _evidence(error))


def deadline_reached(what: str, error: CodexError | None, silent: float = 0.0) -> str:
    """The reason of a turn that took too long or stopped without its end, with what it waited for.

    `error` is what Codex reported last, `silent` how long it waited for its model, in seconds.
    """
    evidence = ""
    if error:
        what, evidence = f"{what}. The last error of Codex: {_describe(error)}", _evidence(error)
    elif silent >= _LONG_SILENCE:
        what = f"{what}. Codex had waited for a reply of its model for {silent:.0f} s"
    return str(codex_failed(what, evidence))


def render_retry(error: CodexError) -> str:
    """What a person sees while Codex tries again."""
    reason = error.additional_details or error.message or "the reply was cut off"
    hint = f". {LOGIN_HINT}" if is_login_error(f"{reason}\n{_evidence(error)}") else ""
    return f"Codex retries its model request: {reason.strip().removesuffix('.') if hint else reason}{hint}"


def _describe(error: CodexError) -> str:
    details, info = error.additional_details or "", error.codex_error_info
    text = error.message or (info if isinstance(info, str) else "")
    if details and details not in text:
        text = f"{text} ({details})" if text else details
    return text


def _evidence(error: CodexError) -> str:
    """The kind of the error, with the status of the response where there is one."""
    return msgspec.json.encode(error.codex_error_info).decode() if error.codex_error_info else ""


def request_failed(error: RpcError, doing: str) -> CodexFailed:
    return codex_failed(f"Codex refused {doing}: {error.message}", str(bytes(error.data or b""), errors="replace"))


def process_exited(exited: ProcessExited) -> CodexFailed:
    """The process exited or cannot be used any more; with the end of its stderr."""
    tail = stderr_summary(exited)
    return codex_failed(f"{exited}{f'. Its last output: {tail}' if tail else ''}")


def stderr_summary(exited: ProcessExited) -> str:
    """The last lines of its stderr, without warnings and backtrace."""
    text, _, _ = exited.stderr_tail.partition("\nStack backtrace:")
    lines = [line.strip() for line in text.splitlines() if line.strip() and "WARN" not in line]
    return "\n".join(lines[-5:])[-_TAIL:]
