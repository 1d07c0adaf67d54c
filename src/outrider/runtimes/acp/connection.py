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
from outrider.runtimes.acp.protocol import (
    PROTOCOL_VERSION,
    InitializeResponse,
    NewSessionResponse,
    PermissionRequest,
    PromptResponse,
    SessionNotification,
    SessionUpdate,
    parse_or_none,
)
from outrider.runtimes.jsonrpc.connection import (
    METHOD_NOT_FOUND,
    RequestId,
    RpcConnection,
    RpcMessage,
    RpcNotification,
    RpcRequest,
)
from outrider.runtimes.jsonrpc.errors import ProcessExited, RpcError
from outrider.runtimes.jsonrpc.process import Child

SessionMessage = SessionUpdate | tuple[RequestId, PermissionRequest]
"""What the agent says in one session: an update, or a question with the id its answer needs."""
CANCELLED = {"outcome": {"outcome": "cancelled"}}
CANCEL_TIMEOUT = 5.0
"""Seconds in which a prompt that was cancelled must end, before its process is ended."""
_MAX_QUEUED = 4_096
"""Messages of one session that wait to be heard; then the agent waits."""
_log = logging.getLogger("outrider.acp")
T = TypeVar("T")


class RunningPrompt:
    """A prompt that the agent works on."""

    def __init__(self) -> None:
        self.done = anyio.Event()
        self.outcome: PromptResponse | RpcError | Unavailable | None = None
        """Known when it is over."""


class AcpAgent:
    """Speaks with an agent. Several sessions may be open in it, each heard by one turn at a time."""

    def __init__(self, child: Child, peer: RpcConnection, patience: float) -> None:
        self.name = child.name
        self.info = InitializeResponse()
        self.sessions: set[str] = set()
        """The sessions that are open in it."""
        self.retired = anyio.Event()
        """Set when it is not to be used any more."""
        self._child = child
        self._connection = peer
        self._retire_reason = ""
        self._timeout = patience
        self._subscribers: dict[str, MemoryObjectSendStream[SessionMessage]] = {}
        self._unanswered: dict[str, list[RequestId]] = {}
        self._replays: dict[str, list[SessionUpdate]] = {}
        """Of sessions that are being taken up: what was done in them last."""
        self._routed = 0
        self._routed_more = anyio.Event()
        self.group: TaskGroup | None = None

    async def initialize(self) -> None:
        """Raises Refused when it speaks another version; RpcError and Unavailable as a request does."""
        # No files and no terminals of ours are offered: the agent acts itself.
        offered = {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False}
        params = {
            "protocolVersion": PROTOCOL_VERSION,
            "clientCapabilities": offered,
            "clientInfo": {"name": "outrider", "title": "Outrider", "version": __version__},
        }
        self.info = self._parse(await self._request("initialize", params), InitializeResponse)
        if self.info.protocol_version != PROTOCOL_VERSION:
            spoken = self.info.protocol_version
            raise Refused(
                f"{self.name} speaks version {spoken} of ACP, and this Outrider speaks version {PROTOCOL_VERSION}"
            )
        if self.info.agent_info and self.info.agent_info.name:
            self.name = self.info.agent_info.name

    async def open_session(self, folder: str) -> str:
        """A new session in this folder."""
        opened = self._parse(await self._request("session/new", _session_params(folder)), NewSessionResponse)
        self.sessions.add(opened.session_id)
        return opened.session_id

    async def load_session(self, thread: str, folder: str, *, is_retold: bool) -> list[SessionUpdate]:
        """Go on with a session that another process began; with `is_retold`, what was done in it last, if it is told.

        What the agent tells of the past is heard here and by nobody else.
        """
        is_load = self.info.can_load and (is_retold or not self.info.can_resume)
        params = {"sessionId": thread, **_session_params(folder)}
        past = self._replays[thread] = []
        try:
            await self._request("session/load" if is_load else "session/resume", params)
            await self._wait_routed()
        finally:
            del self._replays[thread]
        self.sessions.add(thread)
        return past

    @asynccontextmanager
    async def subscribe(self, thread: str) -> AsyncGenerator[MemoryObjectReceiveStream[SessionMessage]]:
        """All that is said in this session from now on. Before and after, nobody hears it."""
        sender, ear = anyio.create_memory_object_stream[SessionMessage](_MAX_QUEUED)
        self._subscribers[thread] = sender
        try:
            yield ear
        finally:
            self._subscribers.pop(thread, None)
            sender.close()
            if unanswered := _unread_requests(ear):
                self._unanswered[thread] = unanswered
            ear.close()

    def prompt(self, thread: str, blocks: Sequence[Mapping[str, str]]) -> RunningPrompt:
        """Begin a prompt. It goes on whatever becomes of its caller, until it ends, is cancelled, or the agent dies."""
        if self.group is None:
            raise Unavailable(f"{self.name} is not running")
        prompting = RunningPrompt()
        self.group.start_soon(self._prompt, prompting, {"sessionId": thread, "prompt": blocks})
        return prompting

    async def _prompt(self, prompting: RunningPrompt, params: Mapping[str, object]) -> None:
        try:
            found = await self._request("session/prompt", params, math.inf)
            prompting.outcome = self._parse(found, PromptResponse)
        except (RpcError, Unavailable) as error:
            prompting.outcome = error
        finally:
            if prompting.outcome is None:
                prompting.outcome = (
                    Unavailable(f"{self.name} {self._retire_reason}")
                    if self._retire_reason
                    else self._child.exit_error()
                )
            prompting.done.set()

    async def wait_drained(self, thread: str, prompting: RunningPrompt) -> None:
        """Wait for the prompt's end and for all that was said before it; then this session's ear is at its end."""
        await prompting.done.wait()
        await self._wait_routed()
        if sender := self._subscribers.pop(thread, None):
            sender.close()

    async def cancel(self, thread: str, prompting: RunningPrompt, asked: Sequence[RequestId]) -> None:
        """Stop a prompt, and answer what it `asked`. When it does not end in time, the whole agent is retired."""
        asked = (*asked, *self._unanswered.pop(thread, ()))
        with anyio.CancelScope(shield=True):
            try:
                with anyio.move_on_after(CANCEL_TIMEOUT):
                    await self._connection.notify("session/cancel", {"sessionId": thread})
                    for number in asked:
                        await self._connection.respond(number, CANCELLED)
                    await prompting.done.wait()
            except ProcessExited as gone:
                _log.info("%s", gone)
        if not prompting.done.is_set():
            self.retire("did not stop when it was told to, so it was ended")

    async def answer_permission(self, asked: RequestId, option: str) -> None:
        """Answer a question with one of its options, or with none of them."""
        chosen = {"outcome": {"outcome": "selected", "optionId": option}}
        try:
            await self._connection.respond(asked, chosen if option else CANCELLED)
        except ProcessExited as gone:
            _log.debug("%s", gone)  # whoever waits for the prompt is told of it

    async def is_alive(self, within: float) -> bool:
        """Whether it answers. It need not know the method: to say so is an answer."""
        try:
            await self._connection.request("_outrider/alive", {}, within)
        except RpcError:
            return True
        except Unavailable:
            return False
        return True

    def retire(self, reason: str) -> None:
        """Use it no more, and end it; whoever still works with it is told why."""
        _log.warning("%s %s", self.name, reason)
        self._retire_reason = self._retire_reason or reason
        self.retired.set()

    async def route(self) -> None:
        """Take what it says to whoever hears that session, until it is gone."""
        try:
            async for message in self._connection.messages():
                await self._dispatch(message)
                self._routed += 1
                self._notify_routed()
        except ProcessExited as gone:
            _log.debug("%s", gone)
        finally:
            self._routed = self._connection.received
            self._notify_routed()
            self.retired.set()

    async def _dispatch(self, message: RpcMessage) -> None:
        match message:
            case RpcNotification(method="session/update", params=params):
                told = parse_or_none(params, SessionNotification)
                update = parse_or_none(told.update, SessionUpdate) if told else None
                if told and update:
                    await self._deliver(told.session_id, update)
            case RpcRequest(id=number, method="session/request_permission", params=params):
                asked = parse_or_none(params, PermissionRequest)
                if asked is None or not await self._deliver(asked.session_id, (number, asked)):
                    await self._connection.respond(number, CANCELLED)
            case RpcRequest(id=number, method=method):
                await self._connection.respond_error(
                    number, RpcError(METHOD_NOT_FOUND, f"{method} is not offered here")
                )
            case RpcNotification():
                pass

    async def _deliver(self, thread: str, message: SessionMessage) -> bool:
        """Whether somebody hears it."""
        if isinstance(message, SessionUpdate) and (past := self._replays.get(thread)) is not None:
            _add_replayed(message, past)
            return True
        sender = self._subscribers.get(thread)
        try:
            if sender:
                await sender.send(message)
                return True
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            _log.debug("nobody hears session %s any more", thread)
        return False

    async def _wait_routed(self) -> None:
        """All that had been said when this was called is where it belongs."""
        said = self._connection.received
        while self._routed < said:
            await self._routed_more.wait()

    def _notify_routed(self) -> None:
        self._routed_more.set()
        self._routed_more = anyio.Event()

    async def _request(self, method: str, params: object, patience: float | None = None) -> Raw:
        return await self._connection.request(method, params, self._timeout if patience is None else patience)

    def _parse(self, raw: Raw, kind: type[T]) -> T:
        found = parse_or_none(raw, kind)
        if found is None:
            raise Unavailable(f"{self.name} answered with something that is not ACP: {bytes(raw)[:200]!r}")
        return found


def _unread_requests(ear: MemoryObjectReceiveStream[SessionMessage]) -> list[RequestId]:
    """The questions that were still to be heard."""
    found: list[RequestId] = []
    with suppress(anyio.WouldBlock, anyio.EndOfStream):
        while True:
            heard = ear.receive_nowait()
            if not isinstance(heard, SessionUpdate):
                found.append(heard[0])
    return found


def _session_params(folder: str) -> dict[str, object]:
    servers: list[object] = []
    return {"cwd": folder, "mcpServers": servers}


def _add_replayed(update: SessionUpdate, past: list[SessionUpdate]) -> None:
    """Of a past that is retold, keep what was done after the person's last words."""
    match update.session_update:
        case "user_message_chunk":
            past.clear()
        case "tool_call" | "tool_call_update":
            past.append(update)
        case _:
            pass
