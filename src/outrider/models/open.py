"""Opens the models a person chose, each through the plugin that speaks its wire."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from outrider.config.choice import ModelChoice
from outrider.core.errors import Refused
from outrider.core.ports import Blobs, Model
from outrider.models.fallback import FallbackModel
from outrider.plugins import load


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
