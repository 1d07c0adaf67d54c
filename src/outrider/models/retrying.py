"""A model that is asked again while its provider is unavailable."""

from collections.abc import Awaitable, Callable

import anyio

from outrider.core.errors import Unavailable
from outrider.core.events import Delta, Reply
from outrider.core.ports import Emit, Model
from outrider.core.prompt import Prompt
from outrider.core.retry import RetryPolicy, delay


class DeltaTracker:
    """Passes deltas on and remembers whether anything of a reply was shown."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._has_output = False

    def __call__(self, delta: Delta) -> None:
        if delta.kind == "reset":
            self._has_output = False
        elif delta.kind != "note":
            self._has_output = True
        self._emit(delta)

    def reset(self, reason: str) -> None:
        """Have readers forget what was shown, if anything was."""
        if self._has_output:
            self(Delta(reason, "reset"))


class RetryingModel:
    """Asks again by policy; `jitter` gives a number between 0 and 1 for each wait."""

    def __init__(
        self,
        model: Model,
        policy: RetryPolicy,
        jitter: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
    ) -> None:
        self.traits = model.traits
        self._model = model
        self._policy = policy
        self._jitter = jitter
        self._sleep = sleep

    async def reply(self, prompt: Prompt, emit: Emit) -> Reply:
        heard = DeltaTracker(emit)
        attempt = 0
        while True:
            attempt += 1
            try:
                return await self._model.reply(prompt, heard)
            except Unavailable as error:
                wait = delay(self._policy, attempt, error.retry_after, self._jitter())
                if wait is None:
                    raise _gave_up_error(error, attempt) from error
                heard.reset(str(error))
                heard(Delta(f"{error}, asking again in {wait:.2g} s", "note"))
            await self._sleep(wait)


def _gave_up_error(error: Unavailable, attempts: int) -> Unavailable:
    tries = "asked once" if attempts == 1 else f"asked {attempts} times"
    return Unavailable(f"{error} ({tries})", error.retry_after)
