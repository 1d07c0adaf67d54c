"""When a turn of Codex has worked too long, and when its silence is to be looked into. Pure: time is an argument."""

from typing import Literal


class TurnWatchdog:
    """The clocks of one turn. What Codex waits for, or runs, is counted as outstanding."""

    def __init__(self, now: float, seconds: float, quiet: float) -> None:
        self._seconds = seconds
        self._quiet = quiet
        self._worked = 0.0
        self._since = now
        self._last_activity = now
        self._is_after_tool = False
        self._pending_answers = 0
        """Answers of ours that it waits for: to a question, or of a tool."""
        self._running: set[str] = set()

    def turn_started(self, now: float) -> None:
        """The turn begins there now."""
        self._since = self._last_activity = now

    def message_received(self, now: float) -> None:
        """It said something."""
        self._last_activity = now
        self._is_after_tool = False

    def tool_started(self, item: str) -> None:
        self._running.add(item)

    def tool_ended(self, item: str, now: float) -> None:
        self._running.discard(item)
        self._last_activity = now
        self._is_after_tool = True

    def answer_pending(self, now: float) -> None:
        """It waits for an answer of ours: its clock stands still."""
        if not self._pending_answers:
            self._worked += now - self._since
        self._pending_answers += 1

    def answer_sent(self, now: float) -> None:
        """It was given one."""
        self._pending_answers -= 1
        if not self._pending_answers:
            self._since = self._last_activity = now

    def confirmed_alive(self, now: float) -> None:
        """It was found to be alive: silence is counted from here."""
        self._last_activity = now

    @property
    def is_waiting(self) -> bool:
        return self._pending_answers > 0

    def check(self, now: float) -> Literal["", "late", "quiet"]:
        """`late`: it has worked too long. `quiet`: look whether it still works."""
        if self._pending_answers:
            return ""
        if self._worked + now - self._since >= self._seconds:
            return "late"
        is_idle = self._is_after_tool and not self._running
        return "quiet" if is_idle and now - self._last_activity >= self._quiet else ""

    def seconds_to_next_check(self, now: float) -> float:
        """Seconds until it is worth looking again."""
        if self._pending_answers:
            return 1.0
        late = self._seconds - self._worked - (now - self._since)
        quiet = self._last_activity + self._quiet - now if self._is_after_tool and not self._running else late
        return max(0.02, min(late, quiet, 1.0))
