"""The long tail of providers (Gemini, Bedrock, Cohere, Mistral …) through pydantic-ai's `Model`, an optional extra."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from random import random
from typing import TYPE_CHECKING

from outrider.config.choice import ModelChoice
from outrider.core.errors import Refused
from outrider.core.ports import Blobs, Model
from outrider.core.retry import RetryPolicy
from outrider.models.retrying import RetryingModel

if TYPE_CHECKING:
    from pydantic_ai.models import Model as Provider


@asynccontextmanager
async def open_model(choice: ModelChoice, blobs: Blobs) -> AsyncGenerator[Model, None]:
    """The model pydantic-ai knows by this name, e.g. `google:gemini-3-pro`. Its keys come from the environment."""
    try:
        from outrider.models.pydantic_ai_asking import PydanticAiModel, infer_provider_model
    except ImportError as error:
        raise Refused(
            f"{choice.name} needs an extra that is not installed ({error.name}): pip install 'outrider[providers]'"
        ) from None
    provider: Provider = infer_provider_model(choice)
    async with provider:
        yield RetryingModel(PydanticAiModel(provider, choice, blobs), RetryPolicy(attempts=choice.attempts), random)
