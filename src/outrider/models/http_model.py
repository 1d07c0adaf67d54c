"""What one wire format brings: an address, a renderer and a parser. `asking.WireModel` does the rest.

Asks one provider one question over any wire: render, post, read the stream, hand back a whole reply or none.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from enum import Enum
from random import random
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from msgspec.structs import replace

from outrider.config.models import ModelChoice
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
from outrider.models.sse import SseParser, SseTooLong

if TYPE_CHECKING:
    from outrider.models.http_client import HttpClient, StreamedResponse


class ReasoningReplay(Enum):
    """How much of earlier reasoning goes back to the provider."""

    FULL = "whole"
    LENIENT = "loose"
    """All of it, with leave to drop what no longer fits."""
    NONE = "bare"
    """None of it."""


class ReplyParser(Protocol):
    """Turns one answer into a draft. Every method raises Refused or Unavailable for what is no reply."""

    builder: ReplyBuilder
    done: bool
    """The terminal event was seen: nothing more needs to be read."""
    complete: bool
    """The reply is whole, should the stream end here."""

    def event(self, name: str, data: bytes) -> None: ...
    def body(self, content: bytes) -> None:
        """The whole answer of a server that does not stream."""
        ...

    def finish(self) -> ReplyBuilder: ...


class Wire(Protocol):
    """One wire format, set up for one model."""

    url: str
    host: str

    def headers(self, past: ReasoningReplay) -> dict[str, str]: ...
    def render(self, prompt: Prompt, past: ReasoningReplay) -> bytes: ...
    def parser(self, emit: Emit) -> ReplyParser: ...
    def degrade(self, refusal: Refused) -> ReasoningReplay | None:
        """With how much less of the past this refused request may be taken; None when that is not the trouble."""
        ...


def endpoint_url(base: str, path: str) -> tuple[str, str]:
    """`(the URL to post to, its host)`. A base that already ends with the path is taken as it is."""
    url = base.rstrip("/")
    if not url.endswith(path):
        url += path
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise Refused(f"{base!r} is no address of a model: check `outrider config set model.url`")
    return url, parts.hostname + (f":{parts.port}" if parts.port else "")


_MAX_BYTES = 64 * 1024 * 1024
"""Bytes of one answer; no reply comes near."""


def traits_of(choice: ModelChoice) -> ModelTraits:
    """What is known of this model: from its choice, else from the table of well-known ones."""
    facts = model_facts(choice.model)
    prices = choice.prices or (facts.prices if facts else None)
    return ModelTraits(choice.name, choice.wire, choice.context_window or (facts.window if facts else 0), prices=prices)


@asynccontextmanager
async def open_wire_model(
    choice: ModelChoice, wire: Wire, policy: RetryPolicy | None = None
) -> AsyncGenerator[Model, None]:
    """The model behind this wire, asked again by policy while its provider is unavailable."""
    model = WireModel(choice, wire)
    try:
        yield RetryingModel(model, policy or RetryPolicy(attempts=choice.attempts), random)
    finally:
        await model.close()


class WireModel:
    """One model at one provider. Connects when it is first asked."""

    def __init__(self, choice: ModelChoice, wire: Wire) -> None:
        self.traits = traits_of(choice)
        self._choice = choice
        self._wire = wire
        self._endpoint = ProviderEndpoint(wire.host, choice.model, choice.key)
        self._client: HttpClient | None = None
        self._replay = ReasoningReplay.FULL

    async def close(self) -> None:
        if self._client:
            await self._client.close()

    async def reply(self, prompt: Prompt, emit: Emit) -> Reply:
        try:
            return await self._request(prompt, emit, self._replay)
        except Refused as refusal:
            milder = self._wire.degrade(refusal)
            if milder is None or milder is self._replay:
                raise
        # The provider does not take earlier reasoning back as it is, and will not next time.
        self._replay = milder
        return await self._request(prompt, emit, milder)

    async def _request(self, prompt: Prompt, emit: Emit, past: ReasoningReplay) -> Reply:
        body = self._wire.render(prompt, past)
        async with self._get_client().post(self._wire.headers(past), body) as answer:
            if answer.status != 200:
                raise await self._failure(answer)
            parser = self._wire.parser(emit)
            await self._read_response(answer, parser)
        reply = parser.finish().build(prompt.saw, self._choice.name, self.traits.prices)
        return replace(reply, model=self._choice.name)

    def _get_client(self) -> "HttpClient":
        if self._client is None:
            # The HTTP library takes a while to import: only someone who asks pays for it.
            from outrider.models.http_client import HttpClient

            self._client = HttpClient(self._wire.url, self._endpoint, self._choice.idle_timeout)
        return self._client

    async def _failure(self, answer: "StreamedResponse") -> Refused | Unavailable:
        from outrider.models.http_client import unix_time

        wait = retry_after(answer.headers, unix_time())
        return failure(self._endpoint, answer.status, await answer.read(), wait)

    async def _read_response(self, answer: "StreamedResponse", parser: ReplyParser) -> None:
        kind = answer.headers.get("content-type", "").lower()
        if "html" in kind:
            raise malformed_response(self._endpoint, "a web page in place of a reply; check model.url")
        if "json" in kind and "stream" not in kind:
            parser.body(await answer.read(_MAX_BYTES))
            return
        await self._read_events(answer, parser)

    async def _read_events(self, answer: "StreamedResponse", parser: ReplyParser) -> None:
        stream = SseParser()
        read = 0
        try:
            async for chunk in answer.chunks:
                read += len(chunk)
                if read > _MAX_BYTES:
                    raise malformed_response(self._endpoint, f"more than {_MAX_BYTES} bytes in one reply")
                for event in stream.feed(chunk):
                    parser.event(event.name, event.data)
                if parser.done:
                    await answer.drain()
                    return
        except SseTooLong as error:
            raise malformed_response(self._endpoint, str(error)) from None
        for event in stream.close():
            parser.event(event.name, event.data)
        if not parser.complete:
            raise self._ended_early(stream.stray)

    def _ended_early(self, stray: bytes) -> Refused | Unavailable:
        if complaint := failure_in_body(self._endpoint, stray):
            return complaint
        if stray.strip():
            return malformed_response(
                self._endpoint, f"what is no stream of events: {stray[:200].decode('utf-8', 'replace')}"
            )
        return Unavailable(f"{self._endpoint.host} broke off in the middle of a reply")
