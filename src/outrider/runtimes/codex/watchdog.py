"""Watchdog of a Codex turn: when it has worked too long, when its silence must be checked, and when it is aborted.

Pure: time is an argument.
"""

import math
from typing import Literal

ABORT_GRACE = 10.0
"""Seconds of silence after the marker of an aborted turn. Until then, the model may only have quoted it."""
END_TIMEOUT = 5.0
"""Seconds in which the end of a turn must follow the report that its thread is idle."""


class TurnWatchdog:
    """The clocks of one turn. Time in which Codex waits for us does not count."""

    def __init__(self, now: float, seconds: float, quiet: float, abort_grace: float = ABORT_GRACE) -> None:
        self._seconds = seconds
        self._quiet = quiet
        self._abort_grace = abort_grace
        self._abort_marked = math.inf
        """When the newest message had the marker of an aborted turn, last."""
        self._worked = 0.0
        self._since = now
        self._last_activity = now
        self._is_after_tool = False
        self._pending_answers = 0
        """Responses of ours that Codex waits for: to an approval, or of a tool."""
        self._running: set[str] = set()
        self._idle_since: float | None = None
        """When Codex reported that no turn runs in the thread any more."""

    def turn_started(self, now: float) -> None:
        self._since = self._last_activity = now

    def message_received(self, now: float) -> None:
        self._last_activity = now
        self._is_after_tool = False

    def abort_marked(self, now: float) -> None:
        """The newest message has the marker of an aborted turn, and nothing but silence may follow."""
        self._abort_marked = now

    def abort_refuted(self) -> None:
        """Something followed the marker: the turn goes on."""
        self._abort_marked = math.inf

    def tool_started(self, item: str) -> None:
        self._running.add(item)

    def tool_ended(self, item: str, now: float) -> None:
        self._running.discard(item)
        self._last_activity = now
        self._is_after_tool = True

    def thread_status_changed(self, status: str, now: float) -> None:
        """Codex reports it before the end of the turn, which then must follow."""
        self._idle_since = now if status in ("idle", "systemError", "notLoaded") else None

    def answer_pending(self, now: float) -> None:
        """Codex waits for a response of ours: its clock is paused."""
        if not self._pending_answers:
            self._worked += now - self._since
        self._pending_answers += 1

    def answer_sent(self, now: float) -> None:
        self._pending_answers -= 1
        if not self._pending_answers:
            self._since = self._last_activity = now

    def confirmed_alive(self, now: float) -> None:
        """Codex is working: silence counts from now."""
        self._last_activity = now
        self._idle_since = None

    @property
    def is_waiting(self) -> bool:
        return self._pending_answers > 0

    def model_silence(self, now: float) -> float:
        """Seconds in which nothing was reported although no tool was running."""
        return 0.0 if self._pending_answers or self._running else now - self._last_activity

    def check(self, now: float) -> Literal["", "late", "quiet", "idle", "aborted"]:
        """`late`: it has worked too long. `quiet`: ask whether it still works. `idle`: the same, since it says no.
        `aborted`: nothing followed the marker of an aborted turn."""
        if self._pending_answers:
            return ""
        if now - self._abort_marked >= self._abort_grace:
            return "aborted"
        if self._worked + now - self._since >= self._seconds:
            return "late"
        if self._idle_since is not None and now - self._idle_since >= min(self._quiet, END_TIMEOUT):
            return "idle"
        is_idle = self._is_after_tool and not self._running
        return "quiet" if is_idle and now - self._last_activity >= self._quiet else ""

    def seconds_to_next_check(self, now: float) -> float:
        """Seconds until the next check makes sense."""
        if self._pending_answers:
            return 1.0
        late = self._seconds - self._worked - (now - self._since)
        quiet = self._last_activity + self._quiet - now if self._is_after_tool and not self._running else late
        idle = self._idle_since + min(self._quiet, END_TIMEOUT) - now if self._idle_since is not None else late
        aborted = self._abort_marked + self._abort_grace - now
        return max(0.02, min(late, quiet, idle, aborted, 1.0))
