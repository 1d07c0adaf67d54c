"""A chain of models: when one cannot answer, the next is asked."""

from collections.abc import Sequence

from outrider.core.errors import ContextTooLong, Refused, Unavailable
from outrider.core.events import Delta, Reply
from outrider.core.ports import Emit, Model
from outrider.core.prompt import Prompt
from outrider.models.errors import ProviderRefused
from outrider.models.retrying import DeltaTracker


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
