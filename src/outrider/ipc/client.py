"""A guest's end of the link: finds the owner of a home, stays with it, and calls it.

A home as a command has it, whoever owns it: its calls go to the owner of the moment, and are repeated to the next.

Every call is safe to repeat: what is posted carries a key, and whoever follows goes on after the last entry seen.
"""

import asyncio
import secrets
import socket
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from functools import cached_property
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from outrider import __version__
from outrider.app.api import default_model_name
from outrider.config.schema import Config
from outrider.core.approvals import Permission
from outrider.core.errors import HomeBusy, NeedsAnotherProcess, Refused, Unavailable
from outrider.core.events import Asked, Delta, Ended, Entry, Event, Reply
from outrider.core.ports import NATIVE, Commands
from outrider.core.store_port import Key, KeySpec, SearchHit, Session
from outrider.core.tasks import Task
from outrider.core.turn_result import TurnResult, collect_result, until_turn_ended
from outrider.ipc.protocol import (
    ATTACH,
    FOLLOW,
    HAND_OVER,
    CallError,
    CallResult,
    ConnectionLost,
    DeltaFrame,
    EntryFrame,
    IpcConnection,
    IpcRequest,
    IpcResponse,
    OwnerInfo,
    OwnerLeaving,
    model_fingerprint,
    parse_error,
    parse_result,
    process_label,
    render_args,
    socket_path,
)
from outrider.system.lock import LockHolder, last_holder

if TYPE_CHECKING:
    from outrider.app.agent import Agent

_OWNER_INFO_TIMEOUT = 10.0
"""Seconds an owner may take to say who it is."""


class OwnerConnection:
    """Calls to the owner of a home, as it is now. Each raises Lost when the owner goes."""

    def __init__(self, home: Path, workspace: str, owner: OwnerInfo, line: IpcConnection) -> None:
        self._home = home
        self._workspace = workspace
        self.info = owner
        self._connection = line

    async def wait_closed(self) -> str:
        """Wait until the owner goes; whom it makes way for, if anybody."""
        try:
            answer = await self._connection.receive_response()
        except ConnectionLost:
            return ""
        return answer.successor if isinstance(answer, OwnerLeaving) else ""

    async def call(self, call: str, args: Mapping[str, object], pictures: Sequence[bytes] = ()) -> Any:
        """The result of this call of `Acting`, or what it raises."""
        async with _connect(self._home) as line:
            request = IpcRequest(__version__, call, render_args(args), self._workspace, len(pictures))
            await line.send(request, *pictures)
            match await line.receive_response():
                case CallResult(value=value):
                    return parse_result(call, value)
                case other:
                    raise _unexpected_response(other)

    async def follow(self, session: Session, after: int) -> AsyncGenerator[Event, None]:
        """As `Agent.follow`; the session is taken up."""
        async with _connect(self._home) as line:
            await line.send(IpcRequest(__version__, FOLLOW, render_args({"session": session, "after": after})))
            while True:
                match await line.receive_response():
                    case EntryFrame(entry=entry):
                        yield entry
                    case DeltaFrame(delta=delta):
                        yield delta
                    case other:
                        raise _unexpected_response(other)


def _unexpected_response(answer: IpcResponse) -> Exception:
    return (
        parse_error(answer)
        if isinstance(answer, CallError)
        else ConnectionLost("the link brought another answer than asked for")
    )


@asynccontextmanager
async def _connect(home: Path) -> AsyncGenerator[IpcConnection]:
    with IpcConnection(socket.socket(socket.AF_UNIX)) as line:
        line.socket.setblocking(False)
        try:
            with socket_path(home) as path:
                await asyncio.get_running_loop().sock_connect(line.socket, path)
        except OSError as error:
            raise ConnectionLost("nobody answers at the link") from error
        yield line


@asynccontextmanager
async def connect_to_owner(home: Path, workspace: str = "") -> AsyncGenerator[OwnerConnection | None]:
    """Be a guest of whoever owns this home; None when nobody answers. Raises HomeBusy for another version of us."""
    async with AsyncExitStack() as stack:
        guest = None
        with suppress(ConnectionLost, TimeoutError), anyio.fail_after(_OWNER_INFO_TIMEOUT):
            line = await stack.enter_async_context(_connect(home))
            await line.send(IpcRequest(__version__, ATTACH))
            answer = await line.receive_response()
            if not isinstance(answer, OwnerInfo):
                raise _unexpected_response(answer)
            guest = OwnerConnection(home, workspace, answer, line)
        yield guest


async def request_hand_over(home: Path, successor: str) -> bool:
    """Ask the owner of this home to let go of it. False when nobody answers. Raises HomeBusy when it does not."""
    try:
        async with _connect(home) as line:
            await line.send(IpcRequest(__version__, HAND_OVER, render_args({"successor": successor})))
            answer = await line.receive_response()
    except ConnectionLost:
        return False
    if isinstance(answer, CallError):
        raise parse_error(answer)
    return True


CONTINUED_ELSEWHERE = Delta("another process goes on with this turn", "reset")
"""Said in place of what an owner had shown of a reply before it went."""
_PAGE_SIZE = 200
_MAX_WAIT = 1e9
"""Seconds; the wire has no endless ones."""
_HAND_OVER_TIMEOUT = 15.0
"""Seconds that an owner may take to make way."""
_RETRY_DELAY = 1.0
"""Seconds until a call is repeated to an owner that cut it and has not gone after all."""


class OwnerSession:
    """The time with one owner: this process itself, or another."""

    def __init__(self, who: "Agent | OwnerConnection") -> None:
        self.owner = who
        self.is_ending = False
        self.ended = anyio.Event()
        self.streams = 0
        self._calls: set[anyio.CancelScope] = set()

    async def call(self, call: str, args: Mapping[str, Any], pictures: Sequence[bytes]) -> tuple[bool, Any]:
        """Whether it was answered, and how."""
        with anyio.CancelScope() as scope:
            self._calls.add(scope)
            try:
                if isinstance(self.owner, OwnerConnection):
                    return True, await self.owner.call(call, args, pictures)
                pictured = {"images": pictures} if pictures else {}
                return True, await getattr(self.owner, call)(**args, **pictured)
            except ConnectionLost:
                pass
            except Unavailable:
                if not self.is_ending:
                    raise
            finally:
                self._calls.discard(scope)
        await self.wait_ended()
        return False, None

    async def follow(self, session: Session, after: int) -> AsyncGenerator[Event, None]:
        """Ends without an error when the owner goes."""
        self.streams += 1
        try:
            if not isinstance(self.owner, OwnerConnection):
                await self.owner.resume(session)
            async with aclosing(self.owner.follow(session, after)) as events:
                async for event in events:
                    yield event
        except ConnectionLost:
            pass
        except Unavailable:
            if not self.is_ending:
                raise
        finally:
            self.streams -= 1

    async def wait_ended(self) -> None:
        """Wait until it is over, or long enough to try again."""
        with anyio.move_on_after(_RETRY_DELAY):
            await self.ended.wait()

    def end(self) -> None:
        self.is_ending = True
        self.ended.set()
        for scope in tuple(self._calls):
            scope.cancel()


class HomeClient:
    """The `Acting` of a command."""

    def __init__(self, config: Config, *, takes_over: bool = False) -> None:
        """`takes_over` for a command that ends with its turn: it may take the home from who cannot carry that."""
        self.config = config
        self._takes_over = takes_over
        self._hand_over_lock = anyio.Lock()
        self._owner_session: OwnerSession | None = None
        self._attached = anyio.Event()

    def attach(self, who: "Agent | OwnerConnection") -> OwnerSession:
        """This is the owner from now on."""
        self._owner_session = OwnerSession(who)
        self._attached.set()
        return self._owner_session

    def detach(self, owner_session: OwnerSession) -> None:
        """It is no longer."""
        self._owner_session, self._attached = None, anyio.Event()
        owner_session.end()

    async def _wait_attached(self) -> OwnerSession:
        while (seat := self._owner_session) is None:
            await self._attached.wait()
        return seat

    @property
    def _owner(self) -> "Agent | OwnerConnection | None":
        return self._owner_session.owner if self._owner_session else None

    @property
    def is_client(self) -> bool:
        return self._owner is None or isinstance(self._owner, OwnerConnection)

    async def wait_owner_changed(self) -> None:
        await (await self._wait_attached()).ended.wait()
        await self._wait_attached()

    @property
    def notices(self) -> Sequence[str]:
        who = self._owner
        return who.notices if who and not isinstance(who, OwnerConnection) else ()

    def owner_mismatch(self, settings: Mapping[str, str]) -> str:
        who = self._owner
        if not isinstance(who, OwnerConnection) or settings.get("model") or settings.get("runtime", NATIVE) != NATIVE:
            return ""
        if (who.info.model, who.info.runtime) == (self._own_model, self.config.runtime.name):
            return ""
        name = f"{who.info.label} (process {who.info.pid})"
        runtime = "" if who.info.runtime == self.config.runtime.name else f", runtime {who.info.runtime}"
        return f"{name} answers, with its own settings: model {who.info.model or 'none'}{runtime}"

    @property
    def continues_elsewhere(self) -> bool:
        """Whether a turn goes on when this process ends now: another owns the home, or is about to."""
        return self.is_client or bool(self._owner_session and self._owner_session.is_ending)

    @property
    def default_model(self) -> str:
        return self._owner.info.model if isinstance(self._owner, OwnerConnection) else self._own_model

    @property
    def default_runtime(self) -> str:
        return self._owner.info.runtime if isinstance(self._owner, OwnerConnection) else self.config.runtime.name

    @cached_property
    def _own_model(self) -> str:
        return default_model_name(self.config)

    @property
    def commands(self) -> Commands:
        return self._commands

    @cached_property
    def _commands(self) -> Commands:
        from outrider.app.child_sessions import open_commands  # for those who look at what a task wrote

        return open_commands(self.config)

    async def _call(self, call: str, pictures: Sequence[bytes] = (), /, **args: Any) -> Any:
        is_answered, value = False, None
        while not is_answered:
            seat = await self._wait_attached()
            try:
                is_answered, value = await seat.call(call, args, pictures)
            except NeedsAnotherProcess:
                if not await self._has_handed_over(seat):
                    raise
        return value

    async def _has_handed_over(self, owner_session: OwnerSession) -> bool:
        """Whether an owner that cannot carry a turn has gone, asked by this process, which has other means."""
        async with self._hand_over_lock:
            if (
                not isinstance(owner_session.owner, OwnerConnection)
                or owner_session.owner.info.model_fingerprint == model_fingerprint(self.config)
                or not self._takes_over
            ):
                return False
            with suppress(HomeBusy), anyio.move_on_after(_HAND_OVER_TIMEOUT):
                if not owner_session.ended.is_set() and await request_hand_over(self.config.home, process_label()):
                    await owner_session.ended.wait()
            return owner_session.ended.is_set()

    async def _call_changing(self, call: str, **args: Any) -> bool:
        """For calls that say whether they changed anything: one that is repeated may find its own doing."""
        is_answered, value = await (await self._wait_attached()).call(call, args, ())
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
        return await collect_result(known.id, until_turn_ended(entry, self.follow(known, entry.seq - 1)), on_event)

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
            seat = await self._wait_attached()
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
                if not await self._has_handed_over(seat):
                    raise
            await seat.wait_ended()
            if is_written:
                is_written = False
                yield CONTINUED_ELSEWHERE

    async def resume(self, session: Session) -> None:
        await self._call("resume", session=session)

    async def resume_all(self) -> Sequence[Session]:
        return await self._call("resume_all")

    async def wait(self, session: Session) -> TurnResult | None:
        return await self._call("wait", session=session)

    async def stop(self, session: Session, reason: str = "stopped by the person", *, tasks: bool = False) -> bool:
        return await self._call_changing("stop", session=session, reason=reason, tasks=tasks)

    async def answer(self, session: Session, asked: Asked, answer: str) -> bool:
        return await self._call_changing("answer", session=session, asked=asked, answer=answer)

    # Sessions.

    async def session(self, name: str = "") -> Session:
        return await self._call("session", name=name)

    async def find(self, name: str) -> Session:
        return await self._call("find", name=name)

    async def find_by_prefix(self, name: str) -> Session:
        return await self._call("find_by_prefix", name=name)

    async def sessions(self, limit: int = 100) -> Sequence[Session]:
        return await self._call("sessions", limit=limit)

    async def unfinished(self) -> Sequence[Session]:
        return await self._call("unfinished")

    async def journal(self, session: Session, after: int = 0, limit: int = 0) -> Sequence[Entry]:
        found: list[Entry] = []
        while True:
            most = min(_PAGE_SIZE, limit - len(found)) if limit else _PAGE_SIZE
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
        return await self._call_changing("delete", session=session)

    async def change(self, session: Session, settings: Mapping[str, str]) -> None:
        await self._call("change", session=session, settings=settings)

    # Questions, grants, tasks, keys.

    async def questions(self, session: Session) -> Sequence[Asked]:
        return await self._call("questions", session=session)

    async def permissions(self) -> Sequence[Permission]:
        return await self._call("permissions")

    async def revoke_permission(self, permission_id: str) -> bool:
        return await self._call_changing("revoke_permission", permission_id=permission_id)

    async def tasks(
        self, session: Session | None = None, *, open_only: bool = False, limit: int = 1_000
    ) -> Sequence[Task]:
        return await self._call("tasks", session=session, open_only=open_only, limit=limit)

    async def find_task(self, name: str) -> Task:
        return await self._call("find_task", name=name)

    async def kill_task(self, task: Task) -> Task:
        return await self._call("kill_task", task=task)

    async def wait_task(self, task: Task, seconds: float = inf) -> Task:
        return await self._call("wait_task", task=task, seconds=min(seconds, _MAX_WAIT))

    async def find_key(self, id: str) -> Key | None:
        return await self._call("find_key", id=id)

    async def list_keys(self) -> Sequence[Key]:
        return await self._call("list_keys")

    async def spent(self, id: str, since: int = 0) -> float:
        return await self._call("spent", id=id, since=since)

    async def create_key(self, id: str, spec: KeySpec, digest: bytes) -> Key:
        try:
            return await self._call("create_key", id=id, spec=spec, digest=digest)
        except Refused:
            found = await self.find_key(id)
            if found and found.digest == digest:  # it was made before the link was cut
                return found
            raise

    async def revoke_key(self, id: str) -> bool:
        return await self._call_changing("revoke_key", id=id)


POLL_INTERVAL = 0.02
_ACCEPT_TIMEOUT = 10.0
"""Seconds that an owner may take to listen, or to answer."""


class OwnerWait:
    """How long a home may be held by somebody who does not answer."""

    def __init__(self, home: Path, wait: float, listening: float = _ACCEPT_TIMEOUT) -> None:
        self._home = home
        self._limits = (wait, listening)
        self._holder = LockHolder()
        self._since = 0.0

    async def wait_or_raise(self, busy: HomeBusy) -> None:
        """Wait a moment, or raise this when the same holder has been waited for long enough."""
        holder = last_holder(self._home)
        if holder != self._holder:
            self._holder, self._since = holder, time.monotonic()
        if time.monotonic() - self._since >= (self._limits[1] if holder.accepts_clients else self._limits[0]):
            raise busy
        await anyio.sleep(POLL_INTERVAL)
