"""The client side: `HomeClient` is the `AgentApi` of a command, whichever process owns the home.

Its calls go to the present owner, which may be this process itself. When the owner leaves, they are repeated to the
next one. Every call is safe to repeat: an input has a key, and a stream continues after the last entry that was read.
"""

import asyncio
import secrets
import socket
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import msgspec

from outrider import __version__
from outrider.app.api import AgentApi, default_model_name
from outrider.app.operations import Access, Operation
from outrider.config.schema import Config
from outrider.core.errors import HomeBusy, NeedsAnotherProcess, Refused, Unavailable
from outrider.core.events import Delta, Ended, Entry, Event, Reply
from outrider.core.ports import NATIVE, Commands
from outrider.core.store_port import Key, KeySpec, Session
from outrider.ipc.protocol import (
    ATTACH,
    FOLLOW,
    HAND_OVER,
    HAND_OVER_TIMEOUT,
    CallError,
    CallResult,
    ConnectionLost,
    DeltaFrame,
    EntryFrame,
    FollowArgs,
    HandOverArgs,
    IpcConnection,
    IpcRequest,
    IpcResponse,
    OwnerInfo,
    OwnerLeaving,
    model_fingerprint,
    parse_error,
    process_label,
    socket_path,
)
from outrider.system.lock import LockHolder, last_holder

if TYPE_CHECKING:
    from outrider.app.agent import Agent

CONTINUED_ELSEWHERE = Delta("another process continues this turn", "reset")
"""Follows the deltas of a reply whose owner left."""
POLL_INTERVAL = 0.02
_OWNER_INFO_TIMEOUT = 10.0
"""Seconds that an owner may take to describe itself."""
_ACCEPT_TIMEOUT = 10.0
"""Seconds that a new owner may take until it accepts connections."""
_RETRY_DELAY = 1.0
"""Seconds until a call is repeated to an owner that closed the connection but did not leave."""
_PAGE_SIZE = 200


class OwnerConnection:
    """Calls to another process, the present owner of a home. They raise ConnectionLost when it leaves."""

    def __init__(self, home: Path, workspace: str, info: OwnerInfo, connection: IpcConnection) -> None:
        self.info = info
        self._home = home
        self._workspace = workspace
        self._connection = connection

    async def wait_closed(self) -> str:
        """Wait until the owner leaves; its successor, if it named one."""
        try:
            response = await self._connection.receive_response()
        except ConnectionLost:
            return ""
        return response.successor if isinstance(response, OwnerLeaving) else ""

    async def call(self, operation: Operation, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The result of this operation, or what it raises."""
        content, images = operation.encode_args(args, kwargs)
        request = IpcRequest(__version__, operation.name, msgspec.Raw(content), self._workspace, len(images))
        async with _connect(self._home) as connection:
            await connection.send(request, *images)
            match await connection.receive_response():
                case CallResult(value=value):
                    return operation.decode_result(value)
                case other:
                    raise _unexpected_response(other)

    async def follow(self, session: Session, after: int) -> AsyncGenerator[Event, None]:
        """Like `Agent.follow`; the session is resumed too."""
        async with _connect(self._home) as connection:
            await connection.send(_request(FOLLOW, FollowArgs(session, after)))
            while True:
                match await connection.receive_response():
                    case EntryFrame(entry=entry):
                        yield entry
                    case DeltaFrame(delta=delta):
                        yield delta
                    case other:
                        raise _unexpected_response(other)


def _request(call: str, args: FollowArgs | HandOverArgs) -> IpcRequest:
    return IpcRequest(__version__, call, msgspec.Raw(msgspec.json.encode(args)))


def _unexpected_response(response: IpcResponse) -> Exception:
    if isinstance(response, CallError):
        return parse_error(response)
    return ConnectionLost(f"received an unexpected response: {type(response).__name__}")


@asynccontextmanager
async def _connect(home: Path) -> AsyncGenerator[IpcConnection]:
    with IpcConnection(socket.socket(socket.AF_UNIX)) as connection:
        connection.socket.setblocking(False)
        try:
            with socket_path(home) as path:
                await asyncio.get_running_loop().sock_connect(connection.socket, path)
        except OSError as error:
            raise ConnectionLost("no process accepts connections") from error
        yield connection


@asynccontextmanager
async def connect_to_owner(home: Path, workspace: str = "") -> AsyncGenerator[OwnerConnection | None]:
    """Connect to the owner of this home; None when none answers. Raises HomeBusy for another version of Outrider."""
    async with AsyncExitStack() as stack:
        owner = None
        with suppress(ConnectionLost, TimeoutError), anyio.fail_after(_OWNER_INFO_TIMEOUT):
            connection = await stack.enter_async_context(_connect(home))
            await connection.send(IpcRequest(__version__, ATTACH))
            response = await connection.receive_response()
            if not isinstance(response, OwnerInfo):
                raise _unexpected_response(response)
            owner = OwnerConnection(home, workspace, response, connection)
        yield owner


async def request_hand_over(home: Path, successor: str) -> bool:
    """Ask the owner of this home to hand it over. False when none answers. Raises HomeBusy when it refuses."""
    try:
        async with _connect(home) as connection:
            await connection.send(_request(HAND_OVER, HandOverArgs(successor)))
            response = await connection.receive_response()
    except ConnectionLost:
        return False
    if isinstance(response, CallError):
        raise parse_error(response)
    return True


class OwnerSession:
    """The time with one owner: this process itself, or another one."""

    def __init__(self, owner: "Agent | OwnerConnection") -> None:
        self.owner = owner
        self.is_ending = False
        self.ended = anyio.Event()
        self._calls: set[anyio.CancelScope] = set()

    async def call(self, operation: Operation, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[bool, Any]:
        """Whether the owner answered, and its result."""
        with anyio.CancelScope() as scope:
            self._calls.add(scope)
            try:
                if isinstance(self.owner, OwnerConnection):
                    return True, await self.owner.call(operation, args, kwargs)
                return True, await getattr(self.owner, operation.name)(*args, **kwargs)
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
        """Ends without an error when the owner leaves."""
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

    async def wait_ended(self) -> None:
        """Wait until it is over, or long enough for another attempt."""
        with anyio.move_on_after(_RETRY_DELAY):
            await self.ended.wait()

    def start_hand_over(self) -> None:
        """What the owner cannot answer from now on is left to the next one."""
        self.is_ending = True

    def end(self) -> None:
        self.is_ending = True
        self.ended.set()
        for scope in tuple(self._calls):
            scope.cancel()


class HomeClient(AgentApi):
    """The `AgentApi` of a command."""

    def __init__(self, config: Config, *, takes_over: bool = False) -> None:
        """`takes_over`: ask an owner that cannot run a turn of this command to hand over the home."""
        self._config = config
        self._takes_over = takes_over
        self._hand_over_lock = anyio.Lock()
        self._owner_session: OwnerSession | None = None
        self._attached = anyio.Event()

    def attach(self, owner: "Agent | OwnerConnection") -> OwnerSession:
        """Call this owner from now on."""
        self._owner_session = OwnerSession(owner)
        self._attached.set()
        return self._owner_session

    def detach(self, owner_session: OwnerSession) -> None:
        """This owner has left."""
        self._owner_session, self._attached = None, anyio.Event()
        owner_session.end()

    async def _wait_attached(self) -> OwnerSession:
        while (owner_session := self._owner_session) is None:
            await self._attached.wait()
        return owner_session

    @property
    def _owner(self) -> "Agent | OwnerConnection | None":
        return self._owner_session.owner if self._owner_session else None

    @property
    def config(self) -> Config:
        return self._config

    @property
    def is_client(self) -> bool:
        return self._owner is None or isinstance(self._owner, OwnerConnection)

    @property
    def continues_elsewhere(self) -> bool:
        """Whether a turn continues when this process ends now: another one owns the home, or is about to."""
        return self.is_client or bool(self._owner_session and self._owner_session.is_ending)

    async def wait_owner_changed(self) -> None:
        await (await self._wait_attached()).ended.wait()
        await self._wait_attached()

    @property
    def notices(self) -> Sequence[str]:
        owner = self._owner
        return owner.notices if owner and not isinstance(owner, OwnerConnection) else ()

    def owner_mismatch(self, settings: Mapping[str, str]) -> str:
        owner = self._owner
        if not isinstance(owner, OwnerConnection) or settings.get("model"):
            return ""
        info, runtime = owner.info, self.config.default_runtime
        if settings.get("runtime", NATIVE) != NATIVE or (info.model, info.runtime) == (self._own_model, runtime):
            return ""
        text = f"{info.label} (process {info.pid}) runs the turns, with its own settings: model {info.model or 'none'}"
        return text if info.runtime == runtime else f"{text}, runtime {info.runtime}"

    @property
    def default_model(self) -> str:
        return self._owner.info.model if isinstance(self._owner, OwnerConnection) else self._own_model

    @property
    def default_runtime(self) -> str:
        return self._owner.info.runtime if isinstance(self._owner, OwnerConnection) else self.config.default_runtime

    @cached_property
    def _own_model(self) -> str:
        return default_model_name(self.config)

    @property
    def commands(self) -> Commands:
        return self._commands

    @cached_property
    def _commands(self) -> Commands:
        from outrider.app.child_sessions import open_commands  # slow to import, and few commands read task output

        return open_commands(self.config)

    async def forward(self, operation: Operation, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call the owner; after a lost connection, the next one."""
        is_repeated = False
        while True:
            owner_session = await self._wait_attached()
            try:
                is_answered, value = await owner_session.call(operation, args, kwargs)
            except NeedsAnotherProcess:
                if not await self._hand_over(owner_session):
                    raise
                continue
            if is_answered:
                # A repeated call may find that the first one made the change.
                return True if is_repeated and operation.reports_change else value
            is_repeated = True

    async def _hand_over(self, owner_session: OwnerSession) -> bool:
        """Whether an owner that cannot run a turn has left, asked by this process, which has other models."""
        async with self._hand_over_lock:
            if (
                not isinstance(owner_session.owner, OwnerConnection)
                or owner_session.owner.info.model_fingerprint == model_fingerprint(self.config)
                or not self._takes_over
            ):
                return False
            with suppress(HomeBusy), anyio.move_on_after(HAND_OVER_TIMEOUT):
                if not owner_session.ended.is_set() and await request_hand_over(self.config.home, process_label()):
                    await owner_session.ended.wait()
            return owner_session.ended.is_set()

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
        return await super().post(text, session=session, images=images, key=key, address=address)

    async def follow(self, session: Session, after: int = 0) -> AsyncGenerator[Event, None]:
        has_partial_reply = False
        while True:
            owner_session = await self._wait_attached()
            try:
                async with aclosing(owner_session.follow(session, after)) as events:
                    async for event in events:
                        if isinstance(event, Entry):
                            after = event.seq
                            has_partial_reply = has_partial_reply and not isinstance(event.body, Reply | Ended)
                        elif event.kind != "note":
                            has_partial_reply = event.kind != "reset"
                        yield event
            except NeedsAnotherProcess:
                if not await self._hand_over(owner_session):
                    raise
            await owner_session.wait_ended()
            if has_partial_reply:
                has_partial_reply = False
                yield CONTINUED_ELSEWHERE

    async def journal(self, session: Session, after: int = 0, limit: int = 0) -> Sequence[Entry]:
        entries: list[Entry] = []
        while True:
            page_size = min(_PAGE_SIZE, limit - len(entries)) if limit else _PAGE_SIZE
            page = await super().journal(session, after, page_size)
            entries += page
            if len(page) < page_size or len(entries) == limit:
                return entries
            after = page[-1].seq

    async def create_key(self, id: str, spec: KeySpec, digest: bytes) -> Key:
        try:
            return await super().create_key(id, spec, digest)
        except Refused:
            key = await self.find_key(id)
            if key and key.digest == digest:  # created before the connection was lost
                return key
            raise


class OwnerWait:
    """How long to wait for an owner that does not answer."""

    def __init__(self, home: Path, access: Access, wait: float, accept_timeout: float = _ACCEPT_TIMEOUT) -> None:
        self._home = home
        self._access = access
        self._wait = wait
        self._accept_timeout = accept_timeout
        self._holder = LockHolder()
        self._since = 0.0

    async def wait_or_raise(self, busy: HomeBusy) -> None:
        """Wait a moment, or raise this when the same owner has been waited for long enough."""
        holder = last_holder(self._home)
        if holder != self._holder:
            self._holder, self._since = holder, time.monotonic()
        will_accept = holder.serves in (self._access, "full")
        if time.monotonic() - self._since >= (self._accept_timeout if will_accept else self._wait):
            raise busy
        await anyio.sleep(POLL_INTERVAL)
