"""Anthropic's Messages, also spoken by several other providers."""

from contextlib import AbstractAsyncContextManager

from outrider.config.choice import ModelChoice
from outrider.core.errors import Refused
from outrider.core.ports import Blobs, Emit, Model
from outrider.core.prompt import Prompt
from outrider.models.anthropic.parse import MessagesParser
from outrider.models.anthropic.render import MessagesRenderer
from outrider.models.asking import open_wire_model
from outrider.models.errors import ProviderEndpoint
from outrider.models.wire import ReasoningReplay, endpoint_url

_DEFAULT_URL = "https://api.anthropic.com/v1"
_VERSION = "2023-06-01"
_LENIENT_BETA = "thinking-binding-controls-2026-08-01"
"""Needed to ask that stale thinking be dropped rather than refused."""


class MessagesWire:
    """Messages, set up for one model."""

    def __init__(self, choice: ModelChoice, blobs: Blobs) -> None:
        base = (choice.url or _DEFAULT_URL).rstrip("/").removesuffix("/messages")
        # People write this address with and without its version.
        self.url, self.host = endpoint_url(base if base.endswith("/v1") else f"{base}/v1", "/messages")
        self._key = choice.key
        self._endpoint = ProviderEndpoint(self.host, choice.model, choice.key)
        self._renderer = MessagesRenderer(choice, blobs)

    def headers(self, past: ReasoningReplay) -> dict[str, str]:
        headers = {
            "content-type": "application/json",
            "accept": "text/event-stream",
            "accept-encoding": "identity",
            "anthropic-version": _VERSION,
        }
        if self._key:
            headers["x-api-key"] = self._key.reveal()
            if not self.host.endswith("anthropic.com"):
                # Others who speak this wire look for the key where they look for it on their other wires.
                headers["authorization"] = f"Bearer {self._key.reveal()}"
        return headers | ({"anthropic-beta": _LENIENT_BETA} if past is ReasoningReplay.LENIENT else {})

    def render(self, prompt: Prompt, past: ReasoningReplay) -> bytes:
        return self._renderer.render(prompt, past)

    def parser(self, emit: Emit) -> MessagesParser:
        return MessagesParser(emit, self._endpoint)

    def degrade(self, refusal: Refused) -> ReasoningReplay | None:
        """Newer models tie their thinking to the exact words before it, which a compaction or a tail changes."""
        said = str(refusal).lower()
        if "bound to a different conversation" in said:
            return ReasoningReplay.LENIENT
        return ReasoningReplay.NONE if "signature" in said or "`thinking`" in said else None


def open_model(choice: ModelChoice, blobs: Blobs) -> AbstractAsyncContextManager[Model]:
    return open_wire_model(choice, MessagesWire(choice, blobs))
