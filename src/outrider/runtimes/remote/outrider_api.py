"""The sessions API of another Outrider: typed requests, and its events parsed into our own words."""

import base64
import logging
from collections.abc import AsyncGenerator, Sequence
from typing import Any, get_args
from urllib.parse import quote, urlencode

import msgspec
from msgspec import Struct
from msgspec.structs import fields as fields_of

from outrider.core.events import Body, Delta
from outrider.runtimes.jsonrpc.decoding import UnreadReporter
from outrider.runtimes.remote.client import RemoteClient
from outrider.runtimes.remote.errors import DECODE_ERRORS, RemoteFailed, connection_failure, content_failure
from outrider.system.sse import SseParser, SseTooLong

PAGE = 500
"""Entries of one request."""
DELIVERY_HEADER = "outrider-delivery"
"""Says `none` when nobody can be notified after the turn. An Outrider that does not know it ignores it."""
MAX_BACKLOG = 50_000
"""Entries that are read before the live stream; a longer backlog is refused in words."""


_log = logging.getLogger("outrider.remote")
_ENTRY_KINDS: dict[str, type[Struct]] = {str(kind.__struct_config__.tag): kind for kind in get_args(Body)}


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
        self._unread = UnreadReporter(client.endpoint.host, _log, lambda text: None)

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
            try:
                found += [self._parse_entry(entry) for entry in page.entries]
            except DECODE_ERRORS as error:
                raise content_failure(200, f"an entry that cannot be read ({error})", self._client.redact) from None
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
                    return self._parse_entry(event)
        except DECODE_ERRORS as error:
            raise content_failure(200, f"an event that cannot be read ({error})", self._client.redact) from None

    def _parse_entry(self, entry: dict[str, Any]) -> FarEntry:
        """An entry, also of another version: unknown parts are left out. Raises ValidationError when that is too much.

        To ignore such an entry could mean to wait for the end of a turn that has ended.
        """
        seq = msgspec.convert(entry.get("seq"), int)
        body = {name: value for name, value in entry.items() if name not in ("seq", "at")}
        kind = _ENTRY_KINDS.get(str(body.get("type")))
        if kind is None:
            return FarEntry(seq, None)
        try:
            return FarEntry(seq, msgspec.convert(body, Body))
        except msgspec.ValidationError:
            part, unread = _readable_part(body, kind)
            self._unread.report(str(body.get("type")), unread)
            return FarEntry(seq, msgspec.convert(part, Body))


def _readable_part(body: dict[str, Any], kind: type[Struct]) -> tuple[dict[str, Any], list[str]]:
    """The body without optional fields that have another type here, and the names of those."""
    unread: list[str] = []
    for field in fields_of(kind):
        if field.required or field.encode_name not in body:
            continue
        try:
            msgspec.convert(body[field.encode_name], field.type)
        except msgspec.ValidationError:
            unread.append(field.encode_name)
    return {name: value for name, value in body.items() if name not in unread}, unread


def _path(session: str, *more: str) -> str:
    return "/".join(("/v1/sessions", *(quote(part, safe="") for part in (session, *more))))
