"""What can go wrong between us and a child, each named for what its caller may do."""

import signal as signals

from msgspec import Raw

from outrider.core.errors import Unavailable

_MAX_MESSAGE = 500
"""Characters of a message that are shown. Some list every method there is."""


class RpcError(Exception):
    """The other side answered a request with an error. What it means is for the request's owner to know."""

    def __init__(self, code: int, message: str, data: Raw | None = None) -> None:
        super().__init__(f"{message[:_MAX_MESSAGE]} ({code})")
        self.code = code
        self.message = message
        self.data = data
        """As it came; None when there was none."""


class RequestTimeout(Unavailable):
    """A request was not answered in time. Whether it had an effect is unknown; a late answer is dropped."""


class ProcessExited(Unavailable):
    """The child ended, or cannot be spoken with any more. Another one may be started."""

    def __init__(self, name: str, code: int | None, signal: int, stderr_tail: str, reason: str = "") -> None:
        self.name = name
        self.code = code
        """Its exit status; None when a signal ended it, and when it had not ended."""
        self.signal = signal
        """What killed it; 0 when nothing did."""
        self.stderr_tail = stderr_tail
        """The last it said on stderr, for people. It may hold secrets: redact before it is stored."""
        self.reason = reason
        """Why it was given up while it still ran; empty when it ended by itself."""
        super().__init__(f"{name} {self._describe()}")

    def _describe(self) -> str:
        if self.reason:
            return self.reason
        if self.signal:
            return f"was killed by {_signal_name(self.signal)}"
        return f"ended with exit status {self.code}"


def _signal_name(number: int) -> str:
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"
