"""The routes that can start a turn. Each is entered by one door, which fixes where the turn answers to."""

from typing import Any

from msgspec import Struct


class Knock(Struct, frozen=True):
    """A request that starts a turn, and the channel it answers to."""

    path: str
    body: dict[str, Any]
    channel: str
    route: str = ""
    """The route's path, where it is not the request's."""

    @property
    def name(self) -> str:
        return f"POST {self.route or self.path}"


def knocks(text: str) -> dict[str, Knock]:
    """One for every way to say this in a session called `s`."""
    asked = {"model": "outrider", "input": text, "conversation": "s"}
    said = {"model": "outrider", "messages": [{"role": "user", "content": text}]}
    return {
        "chat": Knock("/v1/chat/completions", said, "chat"),
        "response": Knock("/v1/responses", asked, "responses"),
        "response that is not stored": Knock("/v1/responses", {**asked, "store": False}, "chat"),
        "input": Knock("/v1/sessions/s/inputs", {"text": text}, "sessions", "/v1/sessions/{id}/inputs"),
    }
