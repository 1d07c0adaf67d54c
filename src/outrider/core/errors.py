"""Errors say what the caller may do about them."""


class Refused(Exception):
    """Will not work until someone changes something. Do not retry. The text says what to change."""


class Unavailable(Exception):
    """May work later. Retry by policy, not before `retry_after` seconds when that is known."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class NeedsAnotherProcess(Refused):
    """What a turn needs cannot be opened by this process. One with other settings may go on with it."""


class ContextTooLong(Refused):
    """The prompt does not fit the model's window. Shorten it, then ask again."""


class StaleClaim(Exception):
    """The session moved on (stopped, claimed anew): whoever writes under the old generation must fall silent."""


class WriteFailed(Exception):
    """A fact could not be written down, so the act it belongs to must not go on. The turn stays open."""


class HomeBusy(Refused):
    """Another process owns this home."""


class StoreDamaged(Refused):
    """What is on disk cannot be trusted and could not be mended here."""


class NameTaken(Refused):
    """Something else has this name."""


class QueueFull(Refused):
    """Enough waits here already. There is room again when some of it is done."""
