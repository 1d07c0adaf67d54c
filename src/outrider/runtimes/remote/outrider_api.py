"""The sessions API of another Outrider: typed requests, and its events parsed into our own words."""

import base64
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Literal
from urllib.parse import quote, urlencode

import msgspec
from msgspec import Struct

from outrider.core.events import Body, Delta
from outrider.runtimes.remote.client import RemoteClient
from outrider.runtimes.remote.errors import DECODE_ERRORS, RemoteFailed, connection_failure, content_failure
from outrider.system.sse import SseParser, SseTooLong

PAGE = 500
"""Entries of one request."""
DELIVERY_HEADER = "outrider-delivery"
"""Says `none` when nobody can be notified after the turn. An Outrider that does not know it ignores it."""
MAX_BACKLOG = 50_000
"""Entries that are read before the live stream; a longer backlog is refused in words."""


class FarSession(Struct, frozen=True):
    """A session on the other Outrider."""

    id: str
    head: int
    state: str = ""


class FarEntry(Struct, frozen=True):
    """One entry of its journal."""

    seq: int
    body: Body | None
    """None for a kind of entry that this version does not know."""


class FarInput(Struct, frozen=True):
    """A message for a session there."""

    text: str
    images: Sequence[bytes]
    key: str
    can_notify: bool = True
    """Whether what happens after its turn can still be delivered here. If not, the other side promises no notices."""


FarEvent = FarEntry | Delta


class _Health(Struct):
    status: Literal["ok", "failing"]
    version: str = ""


class _SessionList(Struct):
    sessions: list[FarSession]


class _Receipt(Struct):
    session: str
    seq: int


class _EntryList(Struct):
    entries: list[dict[str, Any]]
    head: int


class _TaskList(Struct):
    tasks: list[dict[str, Any]]


class FarOutrider:
    """Another Outrider, as the key's person sees it."""

    def __init__(self, client: RemoteClient) -> None:
        self._client = client

    async def version(self) -> str:
        """Its version; empty when the other side is no Outrider, or the key may not read its sessions."""
        try:
            health = await self._client.request("GET", "/health", _Health)
            await self._client.request("GET", "/v1/sessions?limit=1", _SessionList)
        except RemoteFailed as failed:
            if failed.status:
                return ""
            raise
        return health.version

    async def create_session(self, name: str) -> FarSession:
        """The session of this name, created if there is none."""
        return await self._client.request("POST", "/v1/sessions", FarSession, {"name": name})

    async def find_session(self, session: str) -> FarSession | None:
        """None when it was deleted there."""
        try:
            return await self._client.request("GET", _path(session), FarSession)
        except RemoteFailed as failed:
            if failed.status == 404:
                return None
            raise

    async def add_input(self, session: str, new: FarInput) -> int:
        """Send a message, once for each key: the number of its entry there."""
        body = {"text": new.text, "images": [base64.b64encode(image).decode() for image in new.images]}
        headers = {"idempotency-key": new.key}
        if not new.can_notify:
            headers[DELIVERY_HEADER] = "none"
        receipt = await self._client.request("POST", _path(session, "inputs"), _Receipt, body, headers)
        return receipt.seq

    async def entries(self, session: str, after: int) -> Sequence[FarEntry]:
        """Every entry after this one."""
        found: list[FarEntry] = []
        while True:
            query = urlencode({"after": found[-1].seq if found else after, "limit": PAGE})
            page = await self._client.request("GET", f"{_path(session, 'entries')}?{query}", _EntryList)
            found += [_parse_entry(entry) for entry in page.entries]
            if len(page.entries) < PAGE:
                return found
            if len(found) > MAX_BACKLOG:
                raise content_failure(200, f"more than {MAX_BACKLOG:,} entries are new there", self._client.redact)

    async def follow(self, session: str, after: int) -> AsyncGenerator[FarEvent, None]:
        """Entries after this one and deltas in between. Ends with RemoteFailed when the stream does."""
        headers = {"accept": "text/event-stream", "last-event-id": str(after)} if after else {}
        async with self._client.stream("GET", _path(session, "events"), headers) as response:
            events = SseParser()
            try:
                async for chunk in response.chunks:
                    for event in events.feed(chunk):
                        if parsed := self._parse_event(event.data):
                            yield parsed
            except SseTooLong as error:
                raise content_failure(response.status, str(error), self._client.redact) from None
        raise connection_failure("the event stream ended", self._client.redact)

    async def stop(self, session: str) -> None:
        await self._client.request("POST", _path(session, "stop"), msgspec.Raw, {})

    async def answer(self, session: str, question: str, answer: str) -> None:
        """Answer a question; one that has been answered is left as it is."""
        path = _path(session, "questions", question)
        try:
            await self._client.request("POST", path, msgspec.Raw, {"answer": answer})
        except RemoteFailed as failed:
            if failed.status not in (404, 409):
                raise

    async def has_open_tasks(self, session: str) -> bool:
        query = urlencode({"session": session, "open": "true", "limit": 1})
        return bool((await self._client.request("GET", f"/v1/tasks?{query}", _TaskList)).tasks)

    def _parse_event(self, data: bytes) -> FarEvent | None:
        try:
            event = msgspec.json.decode(data, type=dict[str, Any])
            match event.get("type"):
                case "delta":
                    return msgspec.convert(event, Delta)
                case "error":
                    raise connection_failure(str(event.get("message", "")), self._client.redact)
                case "idle":
                    return None
                case _:
                    return _parse_entry(event)
        except DECODE_ERRORS as error:
            raise content_failure(200, f"an event that cannot be read ({error})", self._client.redact) from None


def _parse_entry(entry: dict[str, Any]) -> FarEntry:
    seq = msgspec.convert(entry.get("seq"), int)
    body = {name: value for name, value in entry.items() if name not in ("seq", "at")}
    try:
        return FarEntry(seq, msgspec.convert(body, Body))
    except msgspec.ValidationError:
        return FarEntry(seq, None)


def _path(session: str, *more: str) -> str:
    return "/".join(("/v1/sessions", *(quote(part, safe="") for part in (session, *more))))
