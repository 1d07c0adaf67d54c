"""Retries with exponential backoff."""

from msgspec import Struct


class RetryPolicy(Struct, frozen=True):
    attempts: int = 5
    first: float = 0.5
    factor: float = 2.0
    longest: float = 30.0
    patience: float = 120.0
    """The longest wait that a provider may ask for; with a longer one, there is no retry."""


def delay(policy: RetryPolicy, attempt: int, retry_after: float | None, jitter: float) -> float | None:
    """Seconds to wait before the next attempt after `attempt` failures; None to give up.

    `retry_after` is what the provider asks for. `jitter`, from 0 to 1, spreads out requests that failed together.
    """
    if attempt >= policy.attempts:
        return None
    if retry_after is not None:
        return None if retry_after > policy.patience else max(0.0, retry_after)
    wait = min(policy.longest, policy.first * policy.factor ** (attempt - 1))
    return wait * (0.5 + jitter / 2)
