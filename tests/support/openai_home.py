"""A home served over HTTP, with the official OpenAI client."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionChunk

from outrider.app.agent import Agent
from outrider.channels.http.openai.chat import ENDPOINTS as CHAT
from outrider.channels.http.openai.models import ENDPOINTS as MODELS
from outrider.testing.scripted_model import ScriptedModel
from tests.support.http import key_of, serving
from tests.support.tasking import open_scripted

RING: Any = {
    "type": "function",
    "function": {
        "name": "ring",
        "description": "Ring a bell.",
        "parameters": {"type": "object", "properties": {"times": {"type": "integer"}}},
    },
}


class OpenAIHome:
    """A home served over HTTP, and a client of it."""

    def __init__(self, agent: Agent, client: AsyncOpenAI, url: str, model: ScriptedModel) -> None:
        self.agent, self.client, self.url, self.model = agent, client, url, model

    async def ask(self, *messages: Any, **more: Any) -> Any:
        create: Any = self.client.chat.completions.create
        with anyio.fail_after(60):
            return await create(model=more.pop("model", "outrider"), messages=[_message(m) for m in messages], **more)

    async def chunks(self, *messages: Any, **more: Any) -> list[ChatCompletionChunk]:
        return [chunk async for chunk in await self.ask(*messages, stream=True, **more)]


def _message(message: Any) -> Any:
    return {"role": "user", "content": message} if isinstance(message, str) else message


def text_of(chunks: list[ChatCompletionChunk]) -> str:
    return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)


def client_of(url: str, person: str = "owner", **more: Any) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{url}/v1", api_key=key_of(person), timeout=60, **more)


@asynccontextmanager
async def openai_home(folder: Path, *lines: Any, **settings: str) -> AsyncGenerator[OpenAIHome]:
    model = ScriptedModel(*lines)
    async with (
        open_scripted(folder, model, **settings) as agent,
        serving(agent, (*CHAT, *MODELS)) as url,
        client_of(url) as client,
    ):
        yield OpenAIHome(agent, client, url, model)
