"""Model behind an HTTP API: renders a prompt, posts it, parses the stream, and returns a complete reply or none.

A `Wire` is one API's format: its address, its renderer and its parser. `WireModel` does the rest.
"""

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from enum import Enum
from random import random
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from msgspec import Struct

from outrider.config.models import ModelChoice
from outrider.config.secrets import Secret
from outrider.core.errors import Refused, Unavailable
from outrider.core.events import Reply
from outrider.core.ports import Emit, Model
from outrider.core.prompt import Prompt
from outrider.core.retry import RetryPolicy
from outrider.core.types import ModelTraits
from outrider.models.errors import ProviderEndpoint, failure, failure_in_body, malformed_response, retry_after
from outrider.models.prices import model_facts
from outrider.models.reply_builder import ReplyBuilder
from outrider.models.resilience import RetryingModel
from outrider.system.sse import SseParser, SseTooLong

if TYPE_CHECKING:
    from outrider.models.http_client import HttpClient
    from outrider.system.http_client import StreamedResponse


class ReasoningReplay(Enum):
    """How much of the earlier reasoning is sent back to the provider."""

    FULL = "whole"
    LENIENT = "loose"
    """All of it, and the provider may drop what no longer matches."""
    NONE = "bare"


OPENAI_URL = "https://api.openai.com/v1"
JSON_HEADERS = {"content-type": "application/json", "accept": "text/event-stream", "accept-encoding": "identity"}


def bearer_headers(key: Secret) -> dict[str, str]:
    return JSON_HEADERS | ({"authorization": f"Bearer {key.reveal()}"} if key else {})


class TokenDetails(Struct):
    """What OpenAI's APIs report about input or output tokens."""

    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None


class ReplyParser(Protocol):
    """Parses one response. Every method raises Refused or Unavailable for a response that is not a reply."""

    builder: ReplyBuilder
    done: bool
    """Whether the last event has arrived, so that nothing more needs to be read."""
    complete: bool
    """Whether the reply is complete if the stream ends here."""

    def event(self, name: str, data: bytes) -> None: ...
    def body(self, content: bytes) -> None:
        """Parse the response of a server that does not stream."""
        ...

    def finish(self) -> ReplyBuilder: ...


class Wire(Protocol):
    """One API format, configured for one model."""

    url: str
    endpoint: ProviderEndpoint

    def headers(self, replay: ReasoningReplay) -> dict[str, str]: ...
    def render(self, prompt: Prompt, replay: ReasoningReplay) -> bytes: ...
    def parser(self, emit: Emit) -> ReplyParser: ...
    def degrade(self, refusal: Refused) -> ReasoningReplay | None:
        """How much reasoning to send when this request is retried; None if reasoning was not the reason."""
        ...


def endpoint_url(base: str, path: str) -> tuple[str, str]:
    """`(URL to post to, its host)`. A base that already ends with the path is not changed."""
    url = base.rstrip("/")
    if not url.endswith(path):
        url += path
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise Refused(f"{base!r} is not the address of a model: check `outrider config set model.url`")
    return url, parts.hostname + (f":{parts.port}" if parts.port else "")


_MAX_BYTES = 64 * 1024 * 1024
"""Limit for one response; replies are far shorter."""


def traits_of(choice: ModelChoice) -> ModelTraits:
    """The traits of this model: from its settings, else from the table of well-known models."""
    facts = model_facts(choice.model)
    prices = choice.prices or (facts.prices if facts else None)
    return ModelTraits(choice.name, choice.wire, choice.context_window or (facts.window if facts else 0), prices=prices)


@asynccontextmanager
async def open_wire_model(
    choice: ModelChoice, wire: Wire, policy: RetryPolicy | None = None
) -> AsyncGenerator[Model, None]:
    """The model behind this wire, with retries while its provider is unavailable."""
    model = WireModel(choice, wire)
    try:
        yield RetryingModel(model, policy or RetryPolicy(attempts=choice.attempts), random)
    finally:
        await model.close()


class WireModel:
    """One model of one provider. Connects on the first prompt."""

    def __init__(self, choice: ModelChoice, wire: Wire) -> None:
        self.traits = traits_of(choice)
        self._choice = choice
        self._wire = wire
        self._endpoint = wire.endpoint
        self._client: HttpClient | None = None
        self._replay = ReasoningReplay.FULL

    async def close(self) -> None:
        if self._client:
            await self._client.close()

    async def reply(self, prompt: Prompt, emit: Emit) -> Reply:
        try:
            return await self._request(prompt, emit, self._replay)
        except Refused as refusal:
            degraded = self._wire.degrade(refusal)
            if degraded is None or degraded is self._replay:
                raise
        # The provider refuses the earlier reasoning, and would refuse it in the next prompts too.
        self._replay = degraded
        return await self._request(prompt, emit, degraded)

    async def _request(self, prompt: Prompt, emit: Emit, replay: ReasoningReplay) -> Reply:
        body = self._wire.render(prompt, replay)
        async with self._get_client().post(self._wire.headers(replay), body) as response:
            if response.status != 200:
                wait = retry_after(response.headers, time.time())
                raise failure(self._endpoint, response.status, await response.read(), wait)
            parser = self._wire.parser(emit)
            await self._read_response(response, parser)
        return parser.finish().build(prompt.saw, self._choice.name, self.traits.prices)

    def _get_client(self) -> "HttpClient":
        if self._client is None:
            # Late, because the HTTP library takes long to import and not every process asks a model.
            from outrider.models.http_client import HttpClient

            self._client = HttpClient(self._wire.url, self._endpoint, self._choice.idle_timeout)
        return self._client

    async def _read_response(self, response: "StreamedResponse", parser: ReplyParser) -> None:
        kind = response.headers.get("content-type", "").lower()
        if "html" in kind:
            raise malformed_response(self._endpoint, "a web page instead of a reply; check model.url")
        if "json" in kind and "stream" not in kind:
            parser.body(await response.read(_MAX_BYTES))
            return
        await self._read_events(response, parser)

    async def _read_events(self, response: "StreamedResponse", parser: ReplyParser) -> None:
        stream = SseParser()
        read = 0
        try:
            async for chunk in response.chunks:
                read += len(chunk)
                if read > _MAX_BYTES:
                    raise malformed_response(self._endpoint, f"more than {_MAX_BYTES} bytes in one reply")
                for event in stream.feed(chunk):
                    parser.event(event.name, event.data)
                if parser.done:
                    await response.drain()
                    return
        except SseTooLong as error:
            raise malformed_response(self._endpoint, str(error)) from None
        for event in stream.close():
            parser.event(event.name, event.data)
        if not parser.complete:
            raise self._ended_early(stream.stray)

    def _ended_early(self, stray: bytes) -> Refused | Unavailable:
        if error := failure_in_body(self._endpoint, stray):
            return error
        if stray.strip():
            return malformed_response(
                self._endpoint, f"something other than an event stream: {stray[:200].decode('utf-8', 'replace')}"
            )
        return Unavailable(f"{self._endpoint.host} stopped in the middle of a reply")
