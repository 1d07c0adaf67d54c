"""The default model: a small stand-in made of rules, without network or weights, that does real work with the tools."""

from contextlib import AbstractAsyncContextManager, nullcontext

from outrider.config.models import ModelChoice
from outrider.core.events import Reply
from outrider.core.ports import Emit, Model
from outrider.core.prompt import Prompt
from outrider.core.store_port import Blobs
from outrider.core.types import ModelTraits
from outrider.models.practice.answer import practise
from outrider.models.practice.request import parse_request
from outrider.models.scripted_reply import stream_reply

__all__ = ["PracticeModel", "open_model", "parse_request", "practise"]


class PracticeModel:
    """Answers every prompt by the same rules; the same prompt gets the same reply."""

    def __init__(self, name: str = "practice", window: int = 0) -> None:
        self.traits = ModelTraits(name=name, wire="practice", window=window, images=False)

    async def reply(self, prompt: Prompt, emit: Emit) -> Reply:
        return await stream_reply(practise(prompt), prompt, emit, "practice")


def open_model(choice: ModelChoice, blobs: Blobs) -> AbstractAsyncContextManager[Model]:
    """The practice model; it needs neither an address nor a key."""
    return nullcontext(PracticeModel(choice.name, choice.context_window))
