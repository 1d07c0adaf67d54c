"""Errors of a JSON-RPC connection to a child process."""

import signal as signals

from msgspec import Raw

from outrider.core.errors import Unavailable

_MAX_MESSAGE = 500
"""Characters of a message in the text of an error. Some messages list every method."""


class RpcError(Exception):
    """The response to a request was an error. Its meaning depends on the request."""

    def __init__(self, code: int, message: str, data: Raw | None = None) -> None:
        super().__init__(f"{message[:_MAX_MESSAGE]} ({code})")
        self.code = code
        self.message = message
        self.data = data
        """As received; None when there was none."""


class RequestTimeout(Unavailable):
    """A request got no response in time. Whether it had an effect is unknown; a late response is dropped."""


class ProcessExited(Unavailable):
    """The child exited, or its connection cannot be used any more. Another one may be started."""

    def __init__(self, name: str, code: int | None, signal: int, stderr_tail: str, reason: str = "") -> None:
        self.name = name
        self.code = code
        """Its exit status; None when a signal killed it, and when it has not exited."""
        self.signal = signal
        """The signal that killed it; 0 when none did."""
        self.stderr_tail = stderr_tail
        """The end of its stderr. It may contain secrets: redact it before it is stored."""
        self.reason = reason
        """Why it was given up while it was running; empty when it exited by itself."""
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
