"""Asks one provider one question over any wire: render, post, read the stream, hand back a whole reply or none."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from random import random
from typing import TYPE_CHECKING

from msgspec.structs import replace

from outrider.config.choice import ModelChoice
from outrider.core.errors import Refused, Unavailable
from outrider.core.events import Reply
from outrider.core.ports import Emit, Model
from outrider.core.prompt import Prompt
from outrider.core.retry import RetryPolicy
from outrider.core.traits import ModelTraits
from outrider.models.errors import Peer, failure, failure_in, garbled, retry_after
from outrider.models.prices import known
from outrider.models.retrying import RetryingModel
from outrider.models.sse import EventStream, Overlong
from outrider.models.wire import Parser, Past, Wire

if TYPE_CHECKING:
    from outrider.models.http import Answer, Http

_MOST = 64 * 1024 * 1024
"""Bytes of one answer; no reply comes near."""


def traits_of(choice: ModelChoice) -> ModelTraits:
    """What is known of this model: from its choice, else from the table of well-known ones."""
    facts = known(choice.model)
    prices = choice.prices or (facts.prices if facts else None)
    return ModelTraits(choice.name, choice.wire, choice.context_window or (facts.window if facts else 0), prices=prices)


@asynccontextmanager
async def open_wire(choice: ModelChoice, wire: Wire, policy: RetryPolicy | None = None) -> AsyncGenerator[Model, None]:
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
        self._peer = Peer(wire.host, choice.model, choice.key)
        self._http: Http | None = None
        self._past = Past.WHOLE

    async def close(self) -> None:
        if self._http:
            await self._http.close()

    async def reply(self, prompt: Prompt, emit: Emit) -> Reply:
        try:
            return await self._ask(prompt, emit, self._past)
        except Refused as refusal:
            milder = self._wire.milder(refusal)
            if milder is None or milder is self._past:
                raise
        # The provider does not take earlier reasoning back as it is, and will not next time.
        self._past = milder
        return await self._ask(prompt, emit, milder)

    async def _ask(self, prompt: Prompt, emit: Emit, past: Past) -> Reply:
        body = self._wire.render(prompt, past)
        async with self._pool().post(self._wire.headers(past), body) as answer:
            if answer.status != 200:
                raise await self._failure(answer)
            parser = self._wire.parser(emit)
            await self._read(answer, parser)
        reply = parser.finish().reply(prompt.saw, self._choice.name, self.traits.prices)
        return replace(reply, model=self._choice.name)

    def _pool(self) -> "Http":
        if self._http is None:
            # The HTTP library takes a while to import: only someone who asks pays for it.
            from outrider.models.http import Http

            self._http = Http(self._wire.url, self._peer, self._choice.idle_timeout)
        return self._http

    async def _failure(self, answer: "Answer") -> Refused | Unavailable:
        from outrider.models.http import now

        wait = retry_after(answer.headers, now())
        return failure(self._peer, answer.status, await answer.all(), wait)

    async def _read(self, answer: "Answer", parser: Parser) -> None:
        kind = answer.headers.get("content-type", "").lower()
        if "html" in kind:
            raise garbled(self._peer, "a web page in place of a reply; check model.url")
        if "json" in kind and "stream" not in kind:
            parser.body(await answer.all(_MOST))
            return
        await self._read_events(answer, parser)

    async def _read_events(self, answer: "Answer", parser: Parser) -> None:
        stream = EventStream()
        read = 0
        try:
            async for chunk in answer.chunks:
                read += len(chunk)
                if read > _MOST:
                    raise garbled(self._peer, f"more than {_MOST} bytes in one reply")
                for event in stream.feed(chunk):
                    parser.event(event.name, event.data)
                if parser.done:
                    await answer.drain()
                    return
        except Overlong as error:
            raise garbled(self._peer, str(error)) from None
        for event in stream.close():
            parser.event(event.name, event.data)
        if not parser.complete:
            raise self._broken_off(stream.stray)

    def _broken_off(self, stray: bytes) -> Refused | Unavailable:
        if complaint := failure_in(self._peer, stray):
            return complaint
        if stray.strip():
            return garbled(self._peer, f"what is no stream of events: {stray[:200].decode('utf-8', 'replace')}")
        return Unavailable(f"{self._peer.host} broke off in the middle of a reply")
