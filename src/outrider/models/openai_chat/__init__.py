"""The wire most providers and local servers speak: OpenAI's chat completions."""

from contextlib import AbstractAsyncContextManager

from outrider.config.choice import ModelChoice
from outrider.core.errors import Refused
from outrider.core.ports import Blobs, Emit, Model
from outrider.core.prompt import Prompt
from outrider.models.asking import open_wire
from outrider.models.errors import Peer
from outrider.models.openai_chat.parse import ChatParser
from outrider.models.openai_chat.render import ChatRenderer
from outrider.models.wire import Past, endpoint

_DEFAULT = "https://api.openai.com/v1"


class ChatWire:
    """Chat completions, set up for one model."""

    def __init__(self, choice: ModelChoice, blobs: Blobs) -> None:
        self.url, self.host = endpoint(choice.url or _DEFAULT, "/chat/completions")
        self._key = choice.key
        self._peer = Peer(self.host, choice.model, choice.key)
        self._renderer = ChatRenderer(choice, self.host, blobs)

    def headers(self, past: Past) -> dict[str, str]:
        key = {"authorization": f"Bearer {self._key.reveal()}"} if self._key else {}
        return {"content-type": "application/json", "accept": "text/event-stream", "accept-encoding": "identity"} | key

    def render(self, prompt: Prompt, past: Past) -> bytes:
        return self._renderer.render(prompt)

    def parser(self, emit: Emit) -> ChatParser:
        return ChatParser(emit, self._peer)

    def milder(self, refusal: Refused) -> Past | None:
        return None


def open_model(choice: ModelChoice, blobs: Blobs) -> AbstractAsyncContextManager[Model]:
    return open_wire(choice, ChatWire(choice, blobs))
