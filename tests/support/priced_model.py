"""A scripted model whose replies have a price."""

from msgspec.structs import replace

from outrider.core.events import Reply
from outrider.core.ports import Emit
from outrider.core.prompt import Prompt
from outrider.testing.scripted_model import ScriptedModel


class PricedModel(ScriptedModel):
    """Every reply costs a dollar."""

    async def reply(self, prompt: Prompt, emit: Emit) -> Reply:
        return replace(await super().reply(prompt, emit), cost=1.0)
