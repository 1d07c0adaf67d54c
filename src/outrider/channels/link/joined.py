"""A home as a command has it, whoever owns it: its calls go to the owner of the moment, and are repeated to the next.

Every call is safe to repeat: what is posted carries a key, and whoever follows goes on after the last entry seen.
"""

import secrets
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING, Any

import anyio

from outrider.app.acting import default_model, hear_out, until_dealt_with
from outrider.channels.link.guest import Guest, ask_to_make_way
from outrider.channels.link.waiting import means, myself
from outrider.channels.link.wire import Lost
from outrider.config.load import Config
from outrider.core.approve import Permission
from outrider.core.errors import HomeBusy, NeedsAnotherProcess, Refused, Unavailable
from outrider.core.events import Asked, Delta, Ended, Entry, Event, Reply
from outrider.core.key_ports import Key, KeySpec
from outrider.core.outcome import TurnResult
from outrider.core.ports import NATIVE, Commands, SearchHit, Session
from outrider.core.tasks import Task

if TYPE_CHECKING:
    from outrider.app.agent import Agent

AGAIN = Delta("another process goes on with this turn", "reset")
"""Said in place of what an owner had shown of a reply before it went."""
_PAGE = 200
_LONGEST = 1e9
"""Seconds; the wire has no endless ones."""
_GIVING_WAY = 15.0
"""Seconds that an owner may take to make way."""
_SETTLING = 1.0
"""Seconds until a call is repeated to an owner that cut it and has not gone after all."""


class Seat:
    """The time with one owner: this process itself, or another."""

    def __init__(self, who: "Agent | Guest") -> None:
        self.who = who
        self.is_ending = False
        self.over = anyio.Event()
        self.streams = 0
        self._calls: set[anyio.CancelScope] = set()

    async def call(self, call: str, args: Mapping[str, Any], pictures: Sequence[bytes]) -> tuple[bool, Any]:
        """Whether it was answered, and how."""
        with anyio.CancelScope() as scope:
            self._calls.add(scope)
            try:
                if isinstance(self.who, Guest):
                    return True, await self.who.call(call, args, pictures)
                pictured = {"images": pictures} if pictures else {}
                return True, await getattr(self.who, call)(**args, **pictured)
            except Lost:
                pass
            except Unavailable:
                if not self.is_ending:
                    raise
            finally:
                self._calls.discard(scope)
        await self.settle()
        return False, None

    async def follow(self, session: Session, after: int) -> AsyncGenerator[Event, None]:
        """Ends without an error when the owner goes."""
        self.streams += 1
        try:
            if not isinstance(self.who, Guest):
                await self.who.take_up(session)
            async with aclosing(self.who.follow(session, after)) as events:
                async for event in events:
                    yield event
        except Lost:
            pass
        except Unavailable:
            if not self.is_ending:
                raise
        finally:
            self.streams -= 1

    async def settle(self) -> None:
        """Wait until it is over, or long enough to try again."""
        with anyio.move_on_after(_SETTLING):
            await self.over.wait()

    def end(self) -> None:
        self.is_ending = True
        self.over.set()
        for scope in tuple(self._calls):
            scope.cancel()


class Joined:
    """The `Acting` of a command."""

    def __init__(self, config: Config, *, takes_over: bool = False) -> None:
        """`takes_over` for a command that ends with its turn: it may take the home from who cannot carry that."""
        self.config = config
        self._takes_over = takes_over
        self._asking = anyio.Lock()
        self._seat: Seat | None = None
        self._seated = anyio.Event()

    def sit(self, who: "Agent | Guest") -> Seat:
        """This is the owner from now on."""
        self._seat = Seat(who)
        self._seated.set()
        return self._seat

    def stand(self, seat: Seat) -> None:
        """It is no longer."""
        self._seat, self._seated = None, anyio.Event()
        seat.end()

    async def _sitting(self) -> Seat:
        while (seat := self._seat) is None:
            await self._seated.wait()
        return seat

    @property
    def _who(self) -> "Agent | Guest | None":
        return self._seat.who if self._seat else None

    @property
    def is_guest(self) -> bool:
        return self._who is None or isinstance(self._who, Guest)

    async def until_moved(self) -> None:
        await (await self._sitting()).over.wait()
        await self._sitting()

    @property
    def notices(self) -> Sequence[str]:
        who = self._who
        return who.notices if who and not isinstance(who, Guest) else ()

    def difference(self, settings: Mapping[str, str]) -> str:
        who = self._who
        if not isinstance(who, Guest) or settings.get("model") or settings.get("runtime", NATIVE) != NATIVE:
            return ""
        if (who.owner.model, who.owner.runtime) == (self._own_model, self.config.runtime.name):
            return ""
        name = f"{who.owner.label} (process {who.owner.pid})"
        runtime = "" if who.owner.runtime == self.config.runtime.name else f", runtime {who.owner.runtime}"
        return f"{name} answers, with its own settings: model {who.owner.model or 'none'}{runtime}"

    @property
    def goes_on(self) -> bool:
        """Whether a turn goes on when this process ends now: another owns the home, or is about to."""
        return self.is_guest or bool(self._seat and self._seat.is_ending)

    @property
    def default_model(self) -> str:
        return self._who.owner.model if isinstance(self._who, Guest) else self._own_model

    @property
    def default_runtime(self) -> str:
        return self._who.owner.runtime if isinstance(self._who, Guest) else self.config.runtime.name

    @cached_property
    def _own_model(self) -> str:
        return default_model(self.config)

    @property
    def commands(self) -> Commands:
        return self._commands

    @cached_property
    def _commands(self) -> Commands:
        from outrider.app.tasks import open_commands  # for those who look at what a task wrote

        return open_commands(self.config)

    async def _call(self, call: str, pictures: Sequence[bytes] = (), /, **args: Any) -> Any:
        is_answered, value = False, None
        while not is_answered:
            seat = await self._sitting()
            try:
                is_answered, value = await seat.call(call, args, pictures)
            except NeedsAnotherProcess:
                if not await self._is_given_way(seat):
                    raise
        return value

    async def _is_given_way(self, seat: Seat) -> bool:
        """Whether an owner that cannot carry a turn has gone, asked by this process, which has other means."""
        async with self._asking:
            if not isinstance(seat.who, Guest) or seat.who.owner.means == means(self.config) or not self._takes_over:
                return False
            with suppress(HomeBusy), anyio.move_on_after(_GIVING_WAY):
                if not seat.over.is_set() and await ask_to_make_way(self.config.home, myself()):
                    await seat.over.wait()
            return seat.over.is_set()

    async def _done(self, call: str, **args: Any) -> bool:
        """For calls that say whether they changed anything: one that is repeated may find its own doing."""
        is_answered, value = await (await self._sitting()).call(call, args, ())
        if not is_answered:
            await self._call(call, **args)
        return value if is_answered else True

    # What is said and what comes of it.

    async def say(
        self,
        text: str,
        *,
        session: str = "",
        images: Sequence[bytes] = (),
        key: str | None = None,
        address: str = "",
        on_event: Callable[[Event], None] | None = None,
    ) -> TurnResult:
        known = await self.session(session)
        entry = await self.post(text, session=known, images=images, key=key, address=address)
        return await hear_out(known.id, until_dealt_with(entry, self.follow(known, entry.seq - 1)), on_event)

    async def post(
        self,
        text: str,
        *,
        session: Session,
        images: Sequence[bytes] = (),
        key: str | None = None,
        address: str = "",
    ) -> Entry:
        key = key or f"link/{secrets.token_hex(12)}"
        return await self._call("post", images, text=text, session=session, key=key, address=address)

    async def follow(self, session: Session, after: int = 0) -> AsyncGenerator[Event, None]:
        is_written = False
        while True:
            seat = await self._sitting()
            try:
                async with aclosing(seat.follow(session, after)) as events:
                    async for event in events:
                        if isinstance(event, Entry):
                            after = event.seq
                            is_written = is_written and not isinstance(event.body, Reply | Ended)
                        elif event.kind != "note":
                            is_written = event.kind != "reset"
                        yield event
            except NeedsAnotherProcess:
                if not await self._is_given_way(seat):
                    raise
            await seat.settle()
            if is_written:
                is_written = False
                yield AGAIN

    async def take_up(self, session: Session) -> None:
        await self._call("take_up", session=session)

    async def finish(self) -> Sequence[Session]:
        return await self._call("finish")

    async def wait(self, session: Session) -> TurnResult | None:
        return await self._call("wait", session=session)

    async def stop(self, session: Session, reason: str = "stopped by the person", *, tasks: bool = False) -> bool:
        return await self._done("stop", session=session, reason=reason, tasks=tasks)

    async def answer(self, session: Session, asked: Asked, answer: str) -> bool:
        return await self._done("answer", session=session, asked=asked, answer=answer)

    # Sessions.

    async def session(self, name: str = "") -> Session:
        return await self._call("session", name=name)

    async def find(self, name: str) -> Session:
        return await self._call("find", name=name)

    async def look_up(self, name: str) -> Session:
        return await self._call("look_up", name=name)

    async def sessions(self, limit: int = 100) -> Sequence[Session]:
        return await self._call("sessions", limit=limit)

    async def unfinished(self) -> Sequence[Session]:
        return await self._call("unfinished")

    async def journal(self, session: Session, after: int = 0, limit: int = 0) -> Sequence[Entry]:
        found: list[Entry] = []
        while True:
            most = min(_PAGE, limit - len(found)) if limit else _PAGE
            page: Sequence[Entry] = await self._call("journal", session=session, after=after, limit=most)
            found += page
            if len(page) < most or len(found) == limit:
                return found
            after = page[-1].seq

    async def search(self, words: str, limit: int = 20) -> Sequence[SearchHit]:
        return await self._call("search", words=words, limit=limit)

    async def rename(self, session: Session, name: str) -> Session:
        return await self._call("rename", session=session, name=name)

    async def delete(self, session: Session) -> bool:
        return await self._done("delete", session=session)

    async def change(self, session: Session, settings: Mapping[str, str]) -> None:
        await self._call("change", session=session, settings=settings)

    # Questions, grants, tasks, keys.

    async def asks(self, session: Session) -> Sequence[Asked]:
        return await self._call("asks", session=session)

    async def grants(self) -> Sequence[Permission]:
        return await self._call("grants")

    async def forget_grant(self, grant: str) -> bool:
        return await self._done("forget_grant", grant=grant)

    async def tasks(
        self, session: Session | None = None, *, open_only: bool = False, limit: int = 1_000
    ) -> Sequence[Task]:
        return await self._call("tasks", session=session, open_only=open_only, limit=limit)

    async def find_task(self, name: str) -> Task:
        return await self._call("find_task", name=name)

    async def kill_task(self, task: Task) -> Task:
        return await self._call("kill_task", task=task)

    async def wait_task(self, task: Task, seconds: float = inf) -> Task:
        return await self._call("wait_task", task=task, seconds=min(seconds, _LONGEST))

    async def find_key(self, id: str) -> Key | None:
        return await self._call("find_key", id=id)

    async def list_keys(self) -> Sequence[Key]:
        return await self._call("list_keys")

    async def spent(self, id: str, since: int = 0) -> float:
        return await self._call("spent", id=id, since=since)

    async def create_key(self, id: str, wish: KeySpec, digest: bytes) -> Key:
        try:
            return await self._call("create_key", id=id, wish=wish, digest=digest)
        except Refused:
            found = await self.find_key(id)
            if found and found.digest == digest:  # it was made before the link was cut
                return found
            raise

    async def revoke_key(self, id: str) -> bool:
        return await self._done("revoke_key", id=id)
