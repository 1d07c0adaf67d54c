"""One request for every endpoint that can start a turn."""

from typing import Any

from msgspec import Struct


class TurnRequest(Struct, frozen=True):
    """A request that starts a turn, and the channel of the turn's address."""

    path: str
    body: dict[str, Any]
    channel: str
    endpoint: str = ""
    """The endpoint's path, where the request's differs from it."""

    @property
    def name(self) -> str:
        return f"POST {self.endpoint or self.path}"


def turn_requests(text: str) -> dict[str, TurnRequest]:
    """One for every way to send this text to a session named `s`."""
    response = {"model": "outrider", "input": text, "conversation": "s"}
    completion = {"model": "outrider", "messages": [{"role": "user", "content": text}]}
    return {
        "chat": TurnRequest("/v1/chat/completions", completion, "chat"),
        "response": TurnRequest("/v1/responses", response, "responses"),
        "response that is not stored": TurnRequest("/v1/responses", {**response, "store": False}, "chat"),
        "input": TurnRequest("/v1/sessions/s/inputs", {"text": text}, "sessions", "/v1/sessions/{id}/inputs"),
    }
