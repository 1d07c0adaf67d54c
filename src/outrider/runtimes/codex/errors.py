"""Errors of the Codex runtime, each with what to do about it. Pure."""

import re

from outrider.core.errors import Unavailable
from outrider.runtimes.codex.protocol import CodexError
from outrider.runtimes.jsonrpc.errors import ProcessExited, RpcError

USE_NATIVE_HINT = "To continue without Codex: `/runtime native` in the chat, or `outrider run --runtime native`."
LOGIN_HINT = "Codex is not logged in, or its login has expired: run `codex login`, then send your message again."
_MAX_MESSAGE = 2_000
_TAIL = 1_000
_LOGIN_ERROR = re.compile(
    r"invalid_grant|refresh[ _]token[^.\n]{0,80}(expired|already used|reused|revoked|invalid)"
    r"|could not be refreshed|\b401\b|unauthori[sz]ed|not logged in|please (log|sign) ?in|sign in again"
    r"|token[_ ](expired|revoked|invalidated)|missing bearer",
    re.IGNORECASE,
)


class CodexFailed(Unavailable):
    """The turn failed; the text is for the person."""


def is_login_error(text: str) -> bool:
    """Whether the text says that Codex's credentials were rejected."""
    return bool(_LOGIN_ERROR.search(text))


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
    details = error.additional_details or ""
    info = error.codex_error_info
    text = error.message or (info if isinstance(info, str) else "")
    if details and details not in text:
        text = f"{text} ({details})" if text else details
    return codex_failed(text, str(info or ""))


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
