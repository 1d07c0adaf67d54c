"""A model that is asked again while its provider is unavailable.

A chain of models: when one cannot answer, the next is asked.

Opens the models a person chose, each through the plugin that speaks its wire.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import anyio

from outrider.config.models import ModelChoice
from outrider.core.errors import ContextTooLong, Refused, Unavailable
from outrider.core.events import Delta, Reply
from outrider.core.ports import Emit, Model
from outrider.core.prompt import Prompt
from outrider.core.retry import RetryPolicy, delay
from outrider.core.store_port import Blobs
from outrider.models.errors import ProviderRefused
from outrider.plugins import load


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


class FallbackModel:
    """Answers as the first model that can.

    The next is asked when one is unavailable (its own retries over), when its provider does not serve us at all (key,
    credit, unknown model), and when the prompt is too long for it while the next reads more. Any other refusal is
    about the request itself, which the next would refuse too.
    """

    def __init__(self, models: Sequence[Model]) -> None:
        self.traits = models[0].traits
        self._models = models

    async def reply(self, prompt: Prompt, emit: Emit) -> Reply:
        heard = DeltaTracker(emit)
        failures: list[Refused | Unavailable] = []
        for model, following in zip(self._models, [*self._models[1:], None], strict=True):
            try:
                return await model.reply(prompt, heard)
            except (Refused, Unavailable) as error:
                failures.append(error)
                if following is None or not _next_may_help(error, model, following):
                    raise self._combined_error(failures) from error
                heard.reset(str(error))
                heard(Delta(f"{error}; asking {following.traits.name} instead", "note"))
        raise Refused("no model is set: `outrider config set model …`")

    def _combined_error(self, failures: Sequence[Refused | Unavailable]) -> Refused | Unavailable:
        """The last failure, its text telling of all; worth a retry when any of them is."""
        last = failures[-1]
        if len(failures) == 1 or isinstance(last, ContextTooLong):
            return last
        text = "; ".join(f"{model.traits.name}: {error}" for model, error in zip(self._models, failures, strict=False))
        waits = [error.retry_after for error in failures if isinstance(error, Unavailable)]
        if not waits:
            return Refused(text)
        return Unavailable(text, min((wait for wait in waits if wait is not None), default=None))


def _next_may_help(error: Refused | Unavailable, model: Model, following: Model) -> bool:
    if isinstance(error, ContextTooLong):
        return following.traits.window > model.traits.window
    return isinstance(error, Unavailable | ProviderRefused)


@asynccontextmanager
async def open_models(choices: Sequence[ModelChoice], blobs: Blobs) -> AsyncGenerator[Model, None]:
    """The first choice, with the others behind it for when it cannot answer. Raises Refused for an unknown wire."""
    if not choices:
        raise Refused("no model is set: `outrider config set model …`")
    async with AsyncExitStack() as stack:
        models: list[Model] = [
            await stack.enter_async_context(load("models", choice.wire)(choice, blobs)) for choice in choices
        ]
        yield models[0] if len(models) == 1 else FallbackModel(models)
