"""One running ACP agent: its sessions, the prompts that are open in it, and who hears what it says."""

import logging
import math
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

import anyio
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from msgspec import Raw

from outrider import __version__
from outrider.core.errors import Refused, Unavailable
from outrider.runtimes.acp.wire import VERSION, Initialized, Opened, Permission, Prompted, Told, Update, lenient
from outrider.runtimes.jsonrpc import (
    METHOD_NOT_FOUND,
    Child,
    ChildGone,
    Id,
    Message,
    Notification,
    Peer,
    Request,
    RpcError,
)

Heard = Update | tuple[Id, Permission]
"""What the agent says in one session: an update, or a question with the id its answer needs."""
CANCELLED = {"outcome": {"outcome": "cancelled"}}
OBEYS = 5.0
"""Seconds in which a prompt that was cancelled must end, before its process is ended."""
_ROOM = 4_096
"""Messages of one session that wait to be heard; then the agent waits."""
_log = logging.getLogger("outrider.acp")
T = TypeVar("T")


class Prompting:
    """A prompt that the agent works on."""

    def __init__(self) -> None:
        self.over = anyio.Event()
        self.outcome: Prompted | RpcError | Unavailable | None = None
        """Known when it is over."""


class Agent:
    """Speaks with an agent. Several sessions may be open in it, each heard by one turn at a time."""

    def __init__(self, child: Child, peer: Peer, patience: float) -> None:
        self.name = child.name
        self.can = Initialized()
        self.threads: set[str] = set()
        """The sessions that are open in it."""
        self.retired = anyio.Event()
        """Set when it is not to be used any more."""
        self._child = child
        self._peer = peer
        self._reason = ""
        self._patience = patience
        self._ears: dict[str, MemoryObjectSendStream[Heard]] = {}
        self._unanswered: dict[str, list[Id]] = {}
        self._retold: dict[str, list[Update]] = {}
        """Of sessions that are being taken up: what was done in them last."""
        self._taken = 0
        self._moved = anyio.Event()
        self.group: TaskGroup | None = None

    async def initialize(self) -> None:
        """Raises Refused when it speaks another version; RpcError and Unavailable as a request does."""
        # No files and no terminals of ours are offered: the agent acts itself.
        offered = {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False}
        params = {
            "protocolVersion": VERSION,
            "clientCapabilities": offered,
            "clientInfo": {"name": "outrider", "title": "Outrider", "version": __version__},
        }
        self.can = self._parsed(await self._request("initialize", params), Initialized)
        if self.can.protocol_version != VERSION:
            spoken = self.can.protocol_version
            raise Refused(f"{self.name} speaks version {spoken} of ACP, and this Outrider speaks version {VERSION}")
        if self.can.agent_info and self.can.agent_info.name:
            self.name = self.can.agent_info.name

    async def open_session(self, folder: str) -> str:
        """A new session in this folder."""
        opened = self._parsed(await self._request("session/new", _opening(folder)), Opened)
        self.threads.add(opened.session_id)
        return opened.session_id

    async def take_up(self, thread: str, folder: str, *, is_retold: bool) -> list[Update]:
        """Go on with a session that another process began; with `is_retold`, what was done in it last, if it is told.

        What the agent tells of the past is heard here and by nobody else.
        """
        is_load = self.can.can_load and (is_retold or not self.can.can_resume)
        params = {"sessionId": thread, **_opening(folder)}
        past = self._retold[thread] = []
        try:
            await self._request("session/load" if is_load else "session/resume", params)
            await self._settled()
        finally:
            del self._retold[thread]
        self.threads.add(thread)
        return past

    @asynccontextmanager
    async def heard(self, thread: str) -> AsyncGenerator[MemoryObjectReceiveStream[Heard]]:
        """All that is said in this session from now on. Before and after, nobody hears it."""
        sender, ear = anyio.create_memory_object_stream[Heard](_ROOM)
        self._ears[thread] = sender
        try:
            yield ear
        finally:
            self._ears.pop(thread, None)
            sender.close()
            if unanswered := _questions(ear):
                self._unanswered[thread] = unanswered
            ear.close()

    def prompt(self, thread: str, blocks: Sequence[Mapping[str, str]]) -> Prompting:
        """Begin a prompt. It goes on whatever becomes of its caller, until it ends, is cancelled, or the agent dies."""
        if self.group is None:
            raise Unavailable(f"{self.name} is not running")
        prompting = Prompting()
        self.group.start_soon(self._prompt, prompting, {"sessionId": thread, "prompt": blocks})
        return prompting

    async def _prompt(self, prompting: Prompting, params: Mapping[str, object]) -> None:
        try:
            found = await self._request("session/prompt", params, math.inf)
            prompting.outcome = self._parsed(found, Prompted)
        except (RpcError, Unavailable) as error:
            prompting.outcome = error
        finally:
            if prompting.outcome is None:
                prompting.outcome = Unavailable(f"{self.name} {self._reason}") if self._reason else self._child.gone()
            prompting.over.set()

    async def all_heard(self, thread: str, prompting: Prompting) -> None:
        """Wait for the prompt's end and for all that was said before it; then this session's ear is at its end."""
        await prompting.over.wait()
        await self._settled()
        if sender := self._ears.pop(thread, None):
            sender.close()

    async def cancel(self, thread: str, prompting: Prompting, asked: Sequence[Id]) -> None:
        """Stop a prompt, and answer what it `asked`. When it does not end in time, the whole agent is retired."""
        asked = (*asked, *self._unanswered.pop(thread, ()))
        with anyio.CancelScope(shield=True):
            try:
                with anyio.move_on_after(OBEYS):
                    await self._peer.notify("session/cancel", {"sessionId": thread})
                    for number in asked:
                        await self._peer.answer(number, CANCELLED)
                    await prompting.over.wait()
            except ChildGone as gone:
                _log.info("%s", gone)
        if not prompting.over.is_set():
            self.retire("did not stop when it was told to, so it was ended")

    async def answer(self, asked: Id, option: str) -> None:
        """Answer a question with one of its options, or with none of them."""
        chosen = {"outcome": {"outcome": "selected", "optionId": option}}
        try:
            await self._peer.answer(asked, chosen if option else CANCELLED)
        except ChildGone as gone:
            _log.debug("%s", gone)  # whoever waits for the prompt is told of it

    async def is_alive(self, within: float) -> bool:
        """Whether it answers. It need not know the method: to say so is an answer."""
        try:
            await self._peer.request("_outrider/alive", {}, within)
        except RpcError:
            return True
        except Unavailable:
            return False
        return True

    def retire(self, reason: str) -> None:
        """Use it no more, and end it; whoever still works with it is told why."""
        _log.warning("%s %s", self.name, reason)
        self._reason = self._reason or reason
        self.retired.set()

    async def route(self) -> None:
        """Take what it says to whoever hears that session, until it is gone."""
        try:
            async for message in self._peer.messages():
                await self._take(message)
                self._taken += 1
                self._move()
        except ChildGone as gone:
            _log.debug("%s", gone)
        finally:
            self._taken = self._peer.heard
            self._move()
            self.retired.set()

    async def _take(self, message: Message) -> None:
        match message:
            case Notification(method="session/update", params=params):
                told = lenient(params, Told)
                update = lenient(told.update, Update) if told else None
                if told and update:
                    await self._hear(told.session_id, update)
            case Request(id=number, method="session/request_permission", params=params):
                asked = lenient(params, Permission)
                if asked is None or not await self._hear(asked.session_id, (number, asked)):
                    await self._peer.answer(number, CANCELLED)
            case Request(id=number, method=method):
                await self._peer.refuse(number, RpcError(METHOD_NOT_FOUND, f"{method} is not offered here"))
            case Notification():
                pass

    async def _hear(self, thread: str, heard: Heard) -> bool:
        """Whether somebody hears it."""
        if isinstance(heard, Update) and (past := self._retold.get(thread)) is not None:
            _keep(heard, past)
            return True
        sender = self._ears.get(thread)
        try:
            if sender:
                await sender.send(heard)
                return True
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            _log.debug("nobody hears session %s any more", thread)
        return False

    async def _settled(self) -> None:
        """All that had been said when this was called is where it belongs."""
        said = self._peer.heard
        while self._taken < said:
            await self._moved.wait()

    def _move(self) -> None:
        self._moved.set()
        self._moved = anyio.Event()

    async def _request(self, method: str, params: object, patience: float | None = None) -> Raw:
        return await self._peer.request(method, params, self._patience if patience is None else patience)

    def _parsed(self, raw: Raw, kind: type[T]) -> T:
        found = lenient(raw, kind)
        if found is None:
            raise Unavailable(f"{self.name} answered with something that is not ACP: {bytes(raw)[:200]!r}")
        return found


def _questions(ear: MemoryObjectReceiveStream[Heard]) -> list[Id]:
    """The questions that were still to be heard."""
    found: list[Id] = []
    with suppress(anyio.WouldBlock, anyio.EndOfStream):
        while True:
            heard = ear.receive_nowait()
            if not isinstance(heard, Update):
                found.append(heard[0])
    return found


def _opening(folder: str) -> dict[str, object]:
    servers: list[object] = []
    return {"cwd": folder, "mcpServers": servers}


def _keep(update: Update, past: list[Update]) -> None:
    """Of a past that is retold, keep what was done after the person's last words."""
    match update.session_update:
        case "user_message_chunk":
            past.clear()
        case "tool_call" | "tool_call_update":
            past.append(update)
        case _:
            pass
