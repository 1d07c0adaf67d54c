"""One running ACP agent: its sessions, its running prompts, and the routing of its messages to their turn."""

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
from outrider.runtimes.acp.own_calls import server_params
from outrider.runtimes.acp.protocol import (
    PROTOCOL_VERSION,
    InitializeResponse,
    LoadSessionResponse,
    NewSessionResponse,
    OfferedModes,
    PermissionRequest,
    PromptResponse,
    SessionNotification,
    SessionUpdate,
    parse_or_none,
    parse_permission_request,
    parse_prompt_response,
    parse_update,
)
from outrider.runtimes.jsonrpc.connection import (
    METHOD_NOT_FOUND,
    ConnectionOptions,
    RequestId,
    RpcConnection,
    RpcMessage,
    RpcNotification,
    RpcRequest,
    open_connection,
)
from outrider.runtimes.jsonrpc.errors import ProcessExited, RpcError
from outrider.runtimes.jsonrpc.process import Child, Program, open_child
from outrider.runtimes.mcp_server import McpSession
from outrider.system.task_groups import background_group

SessionMessage = SessionUpdate | tuple[RequestId, PermissionRequest]
"""A message of one session: an update, or a permission request with the id that its response needs."""
CANCELLED = {"outcome": {"outcome": "cancelled"}}
CANCEL_TIMEOUT = 5.0
"""Seconds in which a cancelled prompt must end, before its process is ended."""
_MAX_QUEUED = 4_096
"""Messages of one session that are queued before the agent has to wait."""
_log = logging.getLogger("outrider.acp")
T = TypeVar("T")


class RunningPrompt:
    """A prompt that the agent works on."""

    def __init__(self) -> None:
        self._done = anyio.Event()
        self._outcome: PromptResponse | RpcError | Unavailable | None = None

    @property
    def outcome(self) -> PromptResponse | RpcError | Unavailable | None:
        """None while it is running."""
        return self._outcome

    @property
    def is_done(self) -> bool:
        return self._done.is_set()

    def finish(self, outcome: PromptResponse | RpcError | Unavailable) -> None:
        self._outcome = outcome
        self._done.set()

    async def wait_done(self) -> None:
        await self._done.wait()


class AcpAgent:
    """A running agent. Each of its sessions is used by one turn at a time. Implements `PooledProcess`."""

    def __init__(self, child: Child, connection: RpcConnection, group: TaskGroup, timeout: float) -> None:
        """Prompts run in `group`; `timeout` is for every other request."""
        self.name = child.name
        self.info = InitializeResponse()
        self.sessions: set[str] = set()
        """The sessions that are open in it."""
        self.mcp_sessions: dict[str, McpSession] = {}
        """Of its sessions, those with our tools, and how they reach them."""
        self.modes: dict[str, OfferedModes] = {}
        """The modes of its sessions, as far as they were set by us or reported when the session was opened."""
        self._retired = anyio.Event()
        self._child = child
        self._connection = connection
        self._group = group
        self._retire_reason = ""
        self._timeout = timeout
        self._subscribers: dict[str, MemoryObjectSendStream[SessionMessage]] = {}
        self._unanswered: dict[str, list[RequestId]] = {}
        self._replays: dict[str, list[SessionUpdate]] = {}
        """What was done last in sessions that are being loaded."""
        self._routed = 0
        self._routed_more = anyio.Event()
        """Set when `_routed` grows."""

    @property
    def is_usable(self) -> bool:
        return not self._retired.is_set()

    def retire(self, reason: str = "") -> None:
        """Let no other turn use it, and have the pool end it; running prompts end with the reason."""
        if reason:
            _log.warning("%s %s", self.name, reason)
        self._retire_reason = self._retire_reason or reason
        self._retired.set()

    async def wait_end_requested(self) -> None:
        """Wait until it is retired, or has exited and every message was routed."""
        await self._retired.wait()

    async def initialize(self) -> None:
        """The handshake. Raises Refused for another protocol version; RpcError and Unavailable as a request does."""
        # The agent reads files and runs commands itself.
        capabilities = {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False}
        params = {
            "protocolVersion": PROTOCOL_VERSION,
            "clientCapabilities": capabilities,
            "clientInfo": {"name": "outrider", "title": "Outrider", "version": __version__},
        }
        self.info = self._parse(await self._request("initialize", params), InitializeResponse)
        version = self.info.protocol_version
        if version is None:
            raise Refused(f"{self.name} did not say which version of ACP it speaks")
        if version != PROTOCOL_VERSION:
            raise Refused(
                f"{self.name} speaks version {version} of ACP, and Outrider speaks version {PROTOCOL_VERSION}"
            )
        if self.info.agent_info and self.info.agent_info.name:
            self.name = self.info.agent_info.name

    async def open_session(self, folder: str, tools: McpSession | None = None) -> str:
        """A new session in this folder, with our tools where they are offered."""
        params = _session_params(folder, tools)
        response = self._parse(await self._request("session/new", params), NewSessionResponse)
        if not response.session_id:
            raise Unavailable(f"{self.name} opened a session, and Outrider could not read its id")
        self._add_session(response.session_id, tools)
        self.modes[response.session_id] = response.offered_modes()
        return response.session_id

    async def load_session(
        self, thread: str, folder: str, tools: McpSession | None = None, *, with_replay: bool
    ) -> list[SessionUpdate]:
        """Resume a session of an earlier process, with our tools where they are offered.

        With `with_replay`, the tool calls after the last message, if the agent replays them; no subscriber gets those.
        """
        is_load = self.info.can_load and (with_replay or not self.info.can_resume)
        params = {"sessionId": thread, **_session_params(folder, tools)}
        replayed = self._replays[thread] = []
        try:
            raw = await self._request("session/load" if is_load else "session/resume", params)
            await self._wait_routed()
        finally:
            del self._replays[thread]
        self._add_session(thread, tools)
        self.modes[thread] = (parse_or_none(raw, LoadSessionResponse) or LoadSessionResponse()).offered_modes()
        return replayed

    async def set_mode(self, thread: str, mode: str) -> None:
        """Set the mode of a session. Raises Refused with the modes that there are, when this is none of them."""
        offered = self.modes.get(thread, OfferedModes())
        if mode not in offered.names:
            there_are = f"its modes are {', '.join(offered.names)}" if offered.names else "it has no modes"
            raise Refused(f"{self.name} has no mode {mode!r} (acp.mode): {there_are}")
        if mode == offered.current:
            return
        if offered.option:
            params = {"sessionId": thread, "configId": offered.option, "value": mode}
            await self._request("session/set_config_option", params)
        else:
            await self._request("session/set_mode", {"sessionId": thread, "modeId": mode})
        self._mode_changed(thread, mode)

    def _mode_changed(self, thread: str, mode: str) -> None:
        offered = self.modes.get(thread, OfferedModes())
        self.modes[thread] = OfferedModes(offered.names, mode, offered.option)

    def revoke_tokens(self) -> None:
        """It has ended, so nobody may use the tokens that it was given."""
        for session in self.mcp_sessions.values():
            session.close()

    def _add_session(self, thread: str, tools: McpSession | None) -> None:
        self.sessions.add(thread)
        if tools:
            self.mcp_sessions[thread] = tools

    @asynccontextmanager
    async def subscribe(self, thread: str) -> AsyncGenerator[MemoryObjectReceiveStream[SessionMessage]]:
        """The messages of this session from now on. Without a subscriber they are dropped."""
        sender, receiver = anyio.create_memory_object_stream[SessionMessage](_MAX_QUEUED)
        self._subscribers[thread] = sender
        try:
            yield receiver
        finally:
            self._subscribers.pop(thread, None)
            sender.close()
            if unanswered := _unread_requests(receiver):
                self._unanswered[thread] = unanswered
            receiver.close()

    def prompt(self, thread: str, blocks: Sequence[Mapping[str, str]]) -> RunningPrompt:
        """Start a prompt. It runs independently of its caller, until it ends, is cancelled, or the agent exits."""
        prompt = RunningPrompt()
        self._group.start_soon(self._prompt, prompt, {"sessionId": thread, "prompt": blocks})
        return prompt

    async def _prompt(self, prompt: RunningPrompt, params: Mapping[str, object]) -> None:
        outcome: PromptResponse | RpcError | Unavailable | None = None
        try:
            response = await self._request("session/prompt", params, math.inf)
            outcome = parse_prompt_response(response)
        except (RpcError, Unavailable) as error:
            outcome = error
        finally:
            if outcome is None and self._retire_reason:
                outcome = Unavailable(f"{self.name} {self._retire_reason}")
            prompt.finish(outcome or self._child.exit_error())

    async def wait_drained(self, thread: str, prompt: RunningPrompt) -> None:
        """Wait for the prompt's end and for every message before it; then the subscription of the session ends."""
        await prompt.wait_done()
        await self._wait_routed()
        if sender := self._subscribers.pop(thread, None):
            sender.close()

    async def cancel(self, thread: str, prompt: RunningPrompt, pending: Sequence[RequestId]) -> None:
        """Cancel a prompt and its pending permission requests. When it does not end in time, the agent is retired."""
        pending = (*pending, *self._unanswered.pop(thread, ()))
        with anyio.CancelScope(shield=True):
            try:
                with anyio.move_on_after(CANCEL_TIMEOUT):
                    await self._connection.notify("session/cancel", {"sessionId": thread})
                    for number in pending:
                        await self._connection.respond(number, CANCELLED)
                    await prompt.wait_done()
            except ProcessExited as exited:
                _log.info("%s", exited)
        if not prompt.is_done:
            self.retire("did not stop when its prompt was cancelled, so it was ended")

    async def answer_permission(self, request: RequestId, option: str) -> None:
        """Answer a permission request with one of its options, or with `cancelled` when there is none."""
        selected = {"outcome": {"outcome": "selected", "optionId": option}}
        try:
            await self._connection.respond(request, selected if option else CANCELLED)
        except ProcessExited as exited:
            _log.debug("%s", exited)  # the prompt ends with this error

    def stderr_tail(self) -> str:
        """The end of what it wrote to stderr. It may contain secrets."""
        return self._child.stderr_tail()

    async def ping(self, within: float) -> bool:
        """Whether it answers within this many seconds. An error that it does not know the method is an answer."""
        try:
            await self._connection.request("_outrider/alive", {}, within)
        except RpcError:
            return True
        except Unavailable:
            return False
        return True

    async def route(self) -> None:
        """Deliver each message to the subscriber of its session, until the agent has exited."""
        try:
            async for message in self._connection.messages():
                await self._dispatch(message)
                self._routed += 1
                self._notify_routed()
        except ProcessExited as exited:
            _log.debug("%s", exited)
        finally:
            self._routed = self._connection.received
            self._notify_routed()
            self._retired.set()

    async def _dispatch(self, message: RpcMessage) -> None:
        match message:
            case RpcNotification(method="session/update", params=params):
                notification = parse_or_none(params, SessionNotification)
                if notification:
                    update = parse_update(notification.update)
                    if update.session_update == "current_mode_update":
                        self._mode_changed(notification.session_id, update.current_mode_id or "")
                    await self._deliver(notification.session_id, update)
            case RpcRequest(id=number, method="session/request_permission", params=params):
                request = parse_permission_request(params)
                if not await self._deliver(request.session_id, (number, request)):
                    await self._connection.respond(number, CANCELLED)
            case RpcRequest(id=number, method=method):
                await self._connection.respond_error(number, RpcError(METHOD_NOT_FOUND, f"{method} is not supported"))
            case RpcNotification():
                pass

    async def _deliver(self, thread: str, message: SessionMessage) -> bool:
        """Whether there is a subscriber."""
        if isinstance(message, SessionUpdate) and (replayed := self._replays.get(thread)) is not None:
            _add_replayed(message, replayed)
            return True
        sender = self._subscribers.get(thread)
        if not thread and len(self._subscribers) == 1:
            # The id cannot be read, and there is no other session that it could be for.
            sender = next(iter(self._subscribers.values()))
        try:
            if sender:
                await sender.send(message)
                return True
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            _log.debug("session %s has no subscriber any more", thread)
        return False

    async def _wait_routed(self) -> None:
        """Wait until every message that has been received by now is delivered."""
        received = self._connection.received
        while self._routed < received:
            await self._routed_more.wait()

    def _notify_routed(self) -> None:
        self._routed_more.set()
        self._routed_more = anyio.Event()

    async def _request(self, method: str, params: object, within: float | None = None) -> Raw:
        return await self._connection.request(method, params, self._timeout if within is None else within)

    def _parse(self, raw: Raw, kind: type[T]) -> T:
        response = parse_or_none(raw, kind)
        if response is None:
            raise Unavailable(f"{self.name} answered with something that is not ACP: {bytes(raw)[:200]!r}")
        return response


@asynccontextmanager
async def open_agent(program: Program, request_timeout: float) -> AsyncGenerator[AcpAgent]:
    """An agent after its handshake, ended with everything it started. Raises Refused, Unavailable or RpcError."""
    async with (
        open_child(program) as child,
        open_connection(child, ConnectionOptions("2.0", request_timeout)) as connection,
        background_group() as group,
    ):
        agent = AcpAgent(child, connection, group, request_timeout)
        group.start_soon(agent.route)
        await agent.initialize()
        try:
            yield agent
        finally:
            agent.revoke_tokens()


def _unread_requests(receiver: MemoryObjectReceiveStream[SessionMessage]) -> list[RequestId]:
    """The permission requests among the messages that were not read."""
    requests: list[RequestId] = []
    with suppress(anyio.WouldBlock, anyio.EndOfStream):
        while True:
            message = receiver.receive_nowait()
            if not isinstance(message, SessionUpdate):
                requests.append(message[0])
    return requests


def _session_params(folder: str, tools: McpSession | None) -> dict[str, object]:
    return {"cwd": folder, "mcpServers": [server_params(tools)] if tools else []}


def _add_replayed(update: SessionUpdate, replayed: list[SessionUpdate]) -> None:
    """Of a replayed session, keep the tool calls after the person's last message."""
    match update.session_update:
        case "user_message_chunk":
            replayed.clear()
        case "tool_call" | "tool_call_update":
            replayed.append(update)
        case _:
            pass
