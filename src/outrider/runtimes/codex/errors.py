"""What went wrong with Codex, in words that say what to do about it. Pure."""

import re

from outrider.core.errors import Unavailable
from outrider.runtimes.codex.protocol import CodexError
from outrider.runtimes.jsonrpc.errors import ProcessExited, RpcError

USE_NATIVE_HINT = "To go on without Codex: `/runtime native` in the chat, or `outrider run --runtime native`."
LOGIN_HINT = "Codex is not logged in, or its login has expired: run `codex login`, then say it again."
_MAX_MESSAGE = 2_000
_TAIL = 1_000
_LOGIN_ERROR = re.compile(
    r"invalid_grant|refresh[ _]token[^.\n]{0,80}(expired|already used|reused|revoked|invalid)"
    r"|could not be refreshed|\b401\b|unauthori[sz]ed|not logged in|please (log|sign) ?in|sign in again"
    r"|token[_ ](expired|revoked|invalidated)|missing bearer",
    re.IGNORECASE,
)


class CodexFailed(Unavailable):
    """The turn ended badly; the text is for the person."""


def is_login_error(text: str) -> bool:
    """Whether this says that Codex's credentials were refused."""
    return bool(_LOGIN_ERROR.search(text))


def codex_failed(what: str, evidence: str = "") -> CodexFailed:
    """This, as the person is told it; `evidence` is looked at for a refused login, too."""
    what = what.strip()[:_MAX_MESSAGE] or "Codex failed without saying why."
    if is_login_error(f"{what}\n{evidence}"):
        what = f"{LOGIN_HINT} Codex said: {what}"
    return CodexFailed(f"{_sentence(what)} {USE_NATIVE_HINT}")


def not_logged_in() -> CodexFailed:
    """Nobody is, and somebody must be."""
    return CodexFailed(f"{LOGIN_HINT} {USE_NATIVE_HINT}")


def bad_settings(what: str) -> CodexFailed:
    """Codex cannot read what the person set for it."""
    return codex_failed(f"Codex cannot read its own settings: {what}. Correct that, then say it again")


def turn_failed(fault: CodexError | None) -> CodexFailed:
    """A turn that Codex ended as failed."""
    if fault is None:
        return codex_failed("Codex ended the turn as failed and did not say why")
    details = fault.additional_details or ""
    info = fault.codex_error_info
    words = fault.message or (info if isinstance(info, str) else "")
    if details and details not in words:
        words = f"{words} ({details})" if words else details
    return codex_failed(words, str(info or ""))


def request_failed(error: RpcError, doing: str) -> CodexFailed:
    """Codex refused a request of ours."""
    return codex_failed(f"Codex refused {doing}: {error.message}", str(bytes(error.data or b""), errors="replace"))


def process_exited(gone: ProcessExited) -> CodexFailed:
    """The process is dead, or as good as dead. What it said last goes with it when it says something."""
    tail = stderr_summary(gone)
    return codex_failed(f"{gone}{f'. It said last: {tail}' if tail else ''}")


def stderr_summary(gone: ProcessExited) -> str:
    """What it said of its end, without what it only warned of and without where in its code that was."""
    said, _, _ = gone.stderr_tail.partition("\nStack backtrace:")
    lines = [line.strip() for line in said.splitlines() if line.strip() and "WARN" not in line]
    return "\n".join(lines[-5:])[-_TAIL:]


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?", "`")) else f"{text}."
