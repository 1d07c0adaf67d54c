"""When to try again."""

from msgspec import Struct


class RetryPolicy(Struct, frozen=True):
    attempts: int = 5
    first: float = 0.5
    factor: float = 2.0
    longest: float = 30.0
    patience: float = 120.0
    """A provider that asks for a longer wait than this is not waited for."""


def delay(policy: RetryPolicy, attempt: int, asked: float | None, jitter: float) -> float | None:
    """Seconds to wait before trying again after `attempt` failures, or None to give up.

    `asked` is the provider's own wish; `jitter`, between 0 and 1, spreads out those who failed together.
    """
    if attempt >= policy.attempts:
        return None
    if asked is not None:
        return None if asked > policy.patience else max(0.0, asked)
    wait = min(policy.longest, policy.first * policy.factor ** (attempt - 1))
    return wait * (0.5 + jitter / 2)
