"""Retries and fallbacks: a model that retries while its provider is unavailable, and a chain of models.

`open_models` opens the configured models, each through the plugin of its wire.
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
from outrider.core.text import plural
from outrider.models.errors import ProviderRefused
from outrider.plugins import load


class DeltaTracker:
    """Forwards deltas and knows whether part of a reply was shown."""

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
        """Tell readers to drop the partial reply, if any was shown."""
        if self._has_output:
            self(Delta(reason, "reset"))


class RetryingModel:
    """Retries according to a policy; `jitter` returns a number between 0 and 1 for each wait."""

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
        deltas = DeltaTracker(emit)
        attempt = 0
        while True:
            attempt += 1
            try:
                return await self._model.reply(prompt, deltas)
            except Unavailable as error:
                wait = delay(self._policy, attempt, error.retry_after, self._jitter())
                if wait is None:
                    raise Unavailable(f"{error} ({plural(attempt, 'attempt')})", error.retry_after) from error
                deltas.reset(str(error))
                deltas(Delta(f"{error}, retrying in {wait:.2g} s", "note"))
            await self._sleep(wait)


class FallbackModel:
    """A chain of models: the first one that can answer does.

    The next model is tried if one is unavailable after its own retries, if its provider rejects us (key, credit,
    unknown model), or if the prompt is too long for it and the next has a larger window. Any other refusal concerns the
    request itself, and the next model would refuse it too.
    """

    def __init__(self, models: Sequence[Model]) -> None:
        self.traits = models[0].traits
        self._models = models

    async def reply(self, prompt: Prompt, emit: Emit) -> Reply:
        deltas = DeltaTracker(emit)
        failures: list[Refused | Unavailable] = []
        for model, following in zip(self._models, [*self._models[1:], None], strict=True):
            try:
                return await model.reply(prompt, deltas)
            except (Refused, Unavailable) as error:
                failures.append(error)
                if following is None or not _next_may_help(error, model, following):
                    raise self._combined_error(failures) from error
                deltas.reset(str(error))
                deltas(Delta(f"{error}; trying {following.traits.name} instead", "note"))
        raise Refused("no model is set: `outrider config set model …`")

    def _combined_error(self, failures: Sequence[Refused | Unavailable]) -> Refused | Unavailable:
        """The last failure with the text of all; Unavailable if any of them was."""
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
    """The first choice, with the others as fallbacks. Raises Refused for an unknown wire."""
    if not choices:
        raise Refused("no model is set: `outrider config set model …`")
    async with AsyncExitStack() as stack:
        models: list[Model] = [
            await stack.enter_async_context(load("models", choice.wire)(choice, blobs)) for choice in choices
        ]
        yield models[0] if len(models) == 1 else FallbackModel(models)
