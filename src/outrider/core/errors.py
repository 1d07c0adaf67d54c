"""Errors, named for what the caller may do about them."""


class Refused(Exception):
    """Will not work until something is changed. Do not retry. The text says what to change."""


class Unavailable(Exception):
    """May work later. Retry by policy, not before `retry_after` seconds when that is known."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class NeedsAnotherProcess(Refused):
    """This process cannot open what the turn needs. A process with other settings may continue it."""


class ContextTooLong(Refused):
    """The prompt does not fit the model's window. Shorten it and try again."""


class StaleClaim(Exception):
    """The session was stopped or claimed again. A writer with the old generation must stop."""


class WriteFailed(Exception):
    """An entry could not be recorded, so its action must not be taken. The turn stays open."""


class HomeBusy(Refused):
    """Another process owns this home."""


class StoreDamaged(Refused):
    """The store on disk is damaged and could not be repaired."""


class NameTaken(Refused):
    """The name is in use."""


class QueueFull(Refused):
    """The queue is full. Try again when part of it is done."""
