"""Where other programs call our tools: one listener on loopback, opened when first needed, and a token for each guest.

A guest is one thread or session of another program. Its token says whose turn a call belongs to, and nothing else does.
"""

import hmac
import logging
import secrets
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from hashlib import blake2b

import anyio
from anyio.abc import SocketAttribute, SocketStream, TaskGroup, TaskStatus

from outrider.runtimes.mcp.http import SLOWEST, Heard, Talk, Unfit
from outrider.runtimes.mcp.speech import Offer, reply
from outrider.runtimes.mcp.visit import Visit

PATH = "/mcp"
CONNECTIONS = 256
IDLE = 600.0
"""Seconds a connection of a guest may be silent; longer than clients keep one for the next request."""
_KEPT = 256
_NO_TURN = "not run: no turn of Outrider is under way here"
_ENDED = "the turn ended before this was done; it may or may not have happened"
_FULL = "not run: too many calls at once"
log = logging.getLogger("outrider.mcp")


def new_token() -> str:
    """256 bits that nobody can guess."""
    return secrets.token_urlsafe(32)


class Guest:
    """Who holds one token. Its calls are taken while a turn of it goes on, and refused in words otherwise."""

    def __init__(self, door: "Door", offers: Sequence[Offer], about: str) -> None:
        self.offers = offers
        self.about = about
        self.token = new_token()
        self._door = door
        self._take: Callable[[Visit], None] | None = None
        self._known: dict[str, Visit] = {}
        self._open: set[Visit] = set()

    @property
    def url(self) -> str:
        return self._door.url

    @contextmanager
    def served(self, take: Callable[[Visit], None]) -> Generator[None]:
        """Calls go to `take` until this is left; what is not answered then is told that the turn is over."""
        self._take = take
        try:
            yield
        finally:
            self._take = None
            for visit in list(self._open):
                visit.answer(_ENDED, failed=True)

    async def call(self, visit: Visit) -> Visit:
        """One that comes twice under the same id is done once, and both are told what came of it."""
        if visit.id in self._known:
            visit = self._known[visit.id]
            await visit.until_answered()
            return visit
        if self._take is None or len(self._open) >= _KEPT:
            visit.answer(_FULL if self._take else _NO_TURN, failed=True)
            return visit
        if visit.id:
            self._known[visit.id] = visit
            self._forget()
        self._open.add(visit)
        try:
            self._take(visit)
            await visit.until_answered()
        finally:
            self._open.discard(visit)
        return visit

    def close(self) -> None:
        """The token is worth nothing from now on."""
        self._door.forget(self)

    def _forget(self) -> None:
        for id, visit in list(self._known.items()):
            if len(self._known) <= _KEPT:
                return
            if visit not in self._open:
                del self._known[id]


class Door:
    """The listener and its guests."""

    def __init__(self, group: TaskGroup) -> None:
        """The listener and its connections live in this group, and end with it."""
        self.url = ""
        """Empty until somebody needed it."""
        self._group = group
        self._host = ""
        self._opening = anyio.Lock()
        self._guests: dict[bytes, Guest] = {}
        self._connections = 0

    async def guest(self, offers: Sequence[Offer], about: str) -> Guest:
        """A new guest with a token of its own. Raises OSError when there is no port to be had."""
        async with self._opening:
            if not self.url:
                await self._group.start(self._listen)
        guest = Guest(self, offers, about)
        self._guests[_digest(guest.token)] = guest
        return guest

    def forget(self, guest: Guest) -> None:
        self._guests.pop(_digest(guest.token), None)

    async def _listen(self, *, task_status: TaskStatus[None]) -> None:
        async with await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0) as listener:
            self._host = f"127.0.0.1:{listener.extra(SocketAttribute.local_port)}"
            self.url = f"http://{self._host}{PATH}"
            task_status.started()
            try:
                await listener.serve(self._converse)
            except OSError as error:
                # Who comes next finds another one.
                log.warning("our tools cannot be called any more: %s", error)
                self.url = ""

    async def _converse(self, stream: SocketStream) -> None:
        self._connections += 1
        talk = Talk(stream, self._admit)
        try:
            async with stream:
                await self._answer_all(talk)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream, OSError) as error:
            log.debug("a connection ended: %r", error)
        finally:
            self._connections -= 1

    async def _answer_all(self, talk: Talk) -> None:
        try:
            if self._connections > CONNECTIONS:
                log.warning("more than %d connections at once; one was refused", CONNECTIONS)
                raise Unfit(503)
            patience = SLOWEST
            while heard := await talk.next(patience):
                guest = self._guest_of(heard)
                status, body = await reply(bytes(heard.body), guest)
                await talk.answer(status, body, is_last=heard.is_last)
                if heard.is_last:
                    return
                patience = IDLE
        except Unfit as unfit:
            await talk.refuse(unfit)

    def _admit(self, heard: Heard) -> None:
        if heard.headers.get("host") != self._host:
            raise Unfit(421)
        if "origin" in heard.headers:
            # A browser: no page has any business here.
            raise Unfit(403)
        self._guest_of(heard)
        if heard.path != PATH:
            raise Unfit(404)
        if heard.method != "POST":
            raise Unfit(405)
        if heard.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise Unfit(415)

    def _guest_of(self, heard: Heard) -> Guest:
        scheme, _, token = heard.headers.get("authorization", "").partition(" ")
        guest = self._guests.get(_digest(token))
        if scheme.lower() != "bearer" or guest is None or not hmac.compare_digest(guest.token.encode(), _bytes(token)):
            raise Unfit(401)
        return guest


def _digest(token: str) -> bytes:
    return blake2b(_bytes(token), digest_size=32).digest()


def _bytes(token: str) -> bytes:
    return token.encode(errors="replace")
