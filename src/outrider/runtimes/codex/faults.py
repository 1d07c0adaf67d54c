"""What went wrong with Codex, in words that say what to do about it. Pure."""

import re

from outrider.core.errors import Unavailable
from outrider.runtimes.codex.wire import Fault
from outrider.runtimes.jsonrpc import ChildGone, RpcError

BACK = "To go on without Codex: `/runtime native` in the chat, or `outrider run --runtime native`."
LOGIN = "Codex is not logged in, or its login has expired: run `codex login`, then say it again."
_LONGEST = 2_000
_TAIL = 1_000
_LOGIN = re.compile(
    r"invalid_grant|refresh[ _]token[^.\n]{0,80}(expired|already used|reused|revoked|invalid)"
    r"|could not be refreshed|\b401\b|unauthori[sz]ed|not logged in|please (log|sign) ?in|sign in again"
    r"|token[_ ](expired|revoked|invalidated)|missing bearer",
    re.IGNORECASE,
)


class CodexFailed(Unavailable):
    """The turn ended badly; the text is for the person."""


def is_login(text: str) -> bool:
    """Whether this says that Codex's credentials were refused."""
    return bool(_LOGIN.search(text))


def told(what: str, evidence: str = "") -> CodexFailed:
    """This, as the person is told it; `evidence` is looked at for a refused login, too."""
    what = what.strip()[:_LONGEST] or "Codex failed without saying why."
    if is_login(f"{what}\n{evidence}"):
        what = f"{LOGIN} Codex said: {what}"
    return CodexFailed(f"{_sentence(what)} {BACK}")


def not_logged_in() -> CodexFailed:
    """Nobody is, and somebody must be."""
    return CodexFailed(f"{LOGIN} {BACK}")


def bad_settings(what: str) -> CodexFailed:
    """Codex cannot read what the person set for it."""
    return told(f"Codex cannot read its own settings: {what}. Correct that, then say it again")


def of_fault(fault: Fault | None) -> CodexFailed:
    """A turn that Codex ended as failed."""
    if fault is None:
        return told("Codex ended the turn as failed and did not say why")
    details = fault.additional_details or ""
    info = fault.codex_error_info
    words = fault.message or (info if isinstance(info, str) else "")
    if details and details not in words:
        words = f"{words} ({details})" if words else details
    return told(words, str(info or ""))


def of_rpc(error: RpcError, doing: str) -> CodexFailed:
    """Codex refused a request of ours."""
    return told(f"Codex refused {doing}: {error.message}", str(bytes(error.data or b""), errors="replace"))


def of_gone(gone: ChildGone) -> CodexFailed:
    """The process is dead, or as good as dead. What it said last goes with it when it says something."""
    tail = last_words(gone)
    return told(f"{gone}{f'. It said last: {tail}' if tail else ''}")


def last_words(gone: ChildGone) -> str:
    """What it said of its end, without what it only warned of and without where in its code that was."""
    said, _, _ = gone.stderr_tail.partition("\nStack backtrace:")
    lines = [line.strip() for line in said.splitlines() if line.strip() and "WARN" not in line]
    return "\n".join(lines[-5:])[-_TAIL:]


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?", "`")) else f"{text}."
