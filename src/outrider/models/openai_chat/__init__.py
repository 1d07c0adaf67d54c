"""The wire most providers and local servers speak: OpenAI's chat completions."""

from contextlib import AbstractAsyncContextManager

from outrider.config.choice import ModelChoice
from outrider.core.errors import Refused
from outrider.core.ports import Blobs, Emit, Model
from outrider.core.prompt import Prompt
from outrider.models.asking import open_wire_model
from outrider.models.errors import ProviderEndpoint
from outrider.models.openai_chat.parse import ChatParser
from outrider.models.openai_chat.render import ChatRenderer
from outrider.models.wire import ReasoningReplay, endpoint_url

_DEFAULT_URL = "https://api.openai.com/v1"


class ChatWire:
    """Chat completions, set up for one model."""

    def __init__(self, choice: ModelChoice, blobs: Blobs) -> None:
        self.url, self.host = endpoint_url(choice.url or _DEFAULT_URL, "/chat/completions")
        self._key = choice.key
        self._endpoint = ProviderEndpoint(self.host, choice.model, choice.key)
        self._renderer = ChatRenderer(choice, self.host, blobs)

    def headers(self, past: ReasoningReplay) -> dict[str, str]:
        key = {"authorization": f"Bearer {self._key.reveal()}"} if self._key else {}
        return {"content-type": "application/json", "accept": "text/event-stream", "accept-encoding": "identity"} | key

    def render(self, prompt: Prompt, past: ReasoningReplay) -> bytes:
        return self._renderer.render(prompt)

    def parser(self, emit: Emit) -> ChatParser:
        return ChatParser(emit, self._endpoint)

    def degrade(self, refusal: Refused) -> ReasoningReplay | None:
        return None


def open_model(choice: ModelChoice, blobs: Blobs) -> AbstractAsyncContextManager[Model]:
    return open_wire_model(choice, ChatWire(choice, blobs))
