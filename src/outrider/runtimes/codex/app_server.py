"""One running Codex app-server: requests to it, its loaded threads, and the routing of messages to their thread."""

import logging
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio
from msgspec import Raw, Struct, field
from msgspec.structs import replace

import outrider
from outrider.core.text import one_line
from outrider.core.types import Usage
from outrider.runtimes.codex.errors import bad_settings, codex_failed, not_logged_in
from outrider.runtimes.codex.protocol import (
    parse_config_warning,
    parse_configured_model,
    parse_default_model,
    parse_needs_login,
    parse_notification,
    parse_user_agent,
)
from outrider.runtimes.codex.sandbox_policy import SandboxPolicy
from outrider.runtimes.codex.versions import UPDATE, parse_version, too_old, untested
from outrider.runtimes.jsonrpc.connection import (
    METHOD_NOT_FOUND,
    RequestId,
    RpcConnection,
    RpcMessage,
    RpcNotification,
    RpcRequest,
    open_connection,
)
from outrider.runtimes.jsonrpc.decoding import LenientDecoder
from outrider.runtimes.jsonrpc.errors import ProcessExited, RpcError
from outrider.runtimes.jsonrpc.process import Child, Program, open_child
from outrider.runtimes.mcp_server import McpSession
from outrider.system.task_groups import background_group

INITIALIZE_TIMEOUT = 60.0
_MAX_THREADS = 50
"""Threads that one process keeps open for their next turn; each takes some memory."""
_MAX_QUEUED = 256
"""Messages of one thread that are queued before the other threads have to wait."""
_UNUSED_NOTIFICATIONS = (
    "item/commandExecution/outputDelta",
    "item/fileChange/outputDelta",
    "turn/diff/updated",
    "turn/plan/updated",
    "item/plan/delta",
    "thread/readState/changed",
    "account/rateLimits/updated",
    "mcpServer/startupStatus/updated",
    "remoteControl/status/changed",
)
"""Notifications that Codex is asked not to send: some are frequent, none is needed."""
log = logging.getLogger("outrider.codex")


class _TurnId(Struct):
    id: str = ""


class _ThreadParams(Struct, rename="camel"):
    thread_id: str = ""
    turn_id: str | None = None
    turn: _TurnId = field(default_factory=_TurnId)


_thread_decoder = LenientDecoder(_ThreadParams)


class LoadedThread(Struct, frozen=True):
    """A thread that the app-server has open."""

    id: str
    model: str
    """The model its next turn uses, unless another one is named."""
    sandbox_policy: SandboxPolicy = SandboxPolicy()
    mcp_session: McpSession | None = None
    """How it calls our tools, when it does so over MCP."""


class ThreadMessages:
    """The messages of one thread, for one reader."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self._sender, self._receiver = anyio.create_memory_object_stream[RpcMessage](_MAX_QUEUED)

    async def next(self) -> RpcMessage:
        """Raises ProcessExited when the process has exited and every message was read."""
        try:
            return await self._receiver.receive()
        except anyio.EndOfStream:
            raise self._child.exit_error() from None

    async def put(self, message: RpcMessage) -> None:
        try:
            await self._sender.send(message)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):  # its turn, or the process, has ended
            log.debug("the thread has no reader any more")

    def end(self) -> None:
        self._sender.close()

    def close(self) -> None:
        self._receiver.close()


class AppServer:
    """A running app-server. Implements `PooledProcess`."""

    def __init__(self, child: Child, connection: RpcConnection) -> None:
        self._child = child
        self._connection = connection
        self._subscribers: dict[str, ThreadMessages] = {}
        self._threads: dict[str, LoadedThread] = {}
        self._thread_usage: dict[str, Usage] = {}
        self._default_models: dict[str, str] = {}
        """By workspace, whose own settings may name one."""
        self._is_logged_in = False
        self._config_warning = ""
        self._is_retired = False
        self._end_requested = anyio.Event()
        self._interrupts_others = False

    @property
    def is_usable(self) -> bool:
        return not self._is_retired and not self._child.is_closed

    @property
    def is_logged_in(self) -> bool:
        """Whether `ensure_login` has succeeded."""
        return self._is_logged_in

    @property
    def interrupts_others(self) -> bool:
        """Whether it has ended for a reason that lies in another turn, as far as that is known."""
        return self._interrupts_others

    def retire(self) -> None:
        """Let no other turn use it. The turns that use it finish."""
        self._is_retired = True

    def end(self) -> None:
        """Have the pool end it at once with everything it started, because a turn cannot be stopped otherwise."""
        self._is_retired = True
        self._end_requested.set()

    async def wait_end_requested(self) -> None:
        """Wait until it has to be ended, or has exited and every message was routed."""
        await self._end_requested.wait()

    async def request(self, method: str, params: dict[str, Any], within: float | None = None) -> Raw:
        """`within` are seconds. Raises RpcError, RequestTimeout or ProcessExited."""
        return await self._connection.request(method, params, within)

    async def respond(self, id: RequestId, result: Any) -> None:
        await self._connection.respond(id, result)

    async def respond_error(self, id: RequestId, error: RpcError) -> None:
        await self._connection.respond_error(id, error)

    @contextmanager
    def subscribe(self, thread: str) -> Generator[ThreadMessages]:
        """Receive the messages of this thread from now on."""
        messages = self._subscribers[thread] = ThreadMessages(self._child)
        if self._child.is_closed:
            messages.end()
        try:
            yield messages
        finally:
            if self._subscribers.get(thread) is messages:
                del self._subscribers[thread]
            messages.end()
            messages.close()

    def thread(self, id: str) -> LoadedThread | None:
        """The thread, if this process has it open."""
        return self._threads.get(id)

    async def register_thread(self, thread: LoadedThread) -> None:
        """Remember that this process has the thread open. When it has too many, it may close the oldest unused one."""
        self._threads[thread.id] = thread
        unused = [id for id, each in self._threads.items() if id not in self._subscribers and not each.mcp_session]
        if len(self._threads) <= _MAX_THREADS or not unused or unused[0] == thread.id:
            return
        del self._threads[unused[0]]
        try:
            await self.request("thread/unsubscribe", {"threadId": unused[0]})
        except RpcError as error:
            log.info("Codex does not close threads: %s", error)

    def set_thread_model(self, thread: str, model: str) -> None:
        self._threads[thread] = replace(self._threads[thread], model=model)

    def thread_usage(self, thread: str) -> Usage | None:
        """The tokens of all turns of this thread; None when Codex has not reported them to this process."""
        return self._thread_usage.get(thread)

    def set_thread_usage(self, thread: str, usage: Usage) -> None:
        self._thread_usage[thread] = usage

    def set_default_model(self, workspace: str, model: str) -> None:
        self._default_models[workspace] = model

    async def default_model(self, workspace: str) -> str:
        """The model that Codex uses there when we name none; empty when it does not say."""
        if model := self._default_models.get(workspace):
            return model
        model = ""
        try:
            model = parse_configured_model(await self.request("config/read", {"cwd": workspace}))
            model = model or parse_default_model(await self.request("model/list", {}))
        except RpcError as error:
            log.info("Codex does not say which model is its default: %s", error)
        if model:
            self._default_models[workspace] = model
        return model

    async def initialize(self, within: float = INITIALIZE_TIMEOUT) -> None:
        """The handshake. Raises what a request raises, and CodexFailed for a version that is too old."""
        client = {"name": "outrider", "title": "Outrider", "version": outrider.__version__}
        capabilities = {"experimentalApi": True, "optOutNotificationMethods": _UNUSED_NOTIFICATIONS}
        answer = await self.request("initialize", {"clientInfo": client, "capabilities": capabilities}, within)
        await self._connection.notify("initialized")
        version = parse_version(parse_user_agent(answer))
        if problem := too_old(version):
            raise codex_failed(f"{problem}. To continue with it, {UPDATE}")
        if remark := untested(version):
            log.warning("Codex %s: %s", version or "", remark)

    async def ensure_login(self) -> None:
        """Raise CodexFailed when a login is needed: a turn would retry for a while and fail with another error."""
        if self._is_logged_in:
            return
        try:
            needs_login = parse_needs_login(await self.request("account/read", {}))
        except RpcError:
            needs_login = False
        if needs_login:
            # With settings that it cannot read it uses its defaults, which need a login that is not wanted.
            error = await self.config_error()
            # Only a process that is started after the login has it.
            self.retire()
            raise bad_settings(error) if error else not_logged_in()
        self._is_logged_in = True

    async def config_error(self) -> str:
        """Why Codex cannot read its own settings, with file and line where it says so; empty when it can.

        With unreadable settings it continues with its defaults, such as another provider. Raises Unavailable.
        """
        try:
            await self.request("config/read", {})
        except RpcError as error:
            # An older version may not have this method.
            return (self._config_warning or one_line(error.message)) if "configuration" in error.message else ""
        return ""

    async def route(self) -> None:
        """Deliver each message to its thread, until the process has exited."""
        try:
            async for message in self._connection.messages():
                if message.method == "configWarning":
                    self._config_warning = parse_config_warning(message.params) or self._config_warning
                readers = self._readers_of(message)
                for messages in readers:
                    await messages.put(message)
                if not readers and message.method == "thread/tokenUsage/updated":
                    # Reported when a thread is resumed, before its turn has subscribed.
                    self._note_usage(message.params)
                elif not readers and isinstance(message, RpcRequest):
                    error = RpcError(METHOD_NOT_FOUND, "no turn is running in this thread")
                    await self.respond_error(message.id, error)
        except ProcessExited as exited:
            log.info("%s", exited)
        finally:
            self._interrupts_others = self._is_retired or len(self._subscribers) > 1
            self.end()
            for messages in self._subscribers.values():
                messages.end()

    def _note_usage(self, params: Raw) -> None:
        notification = parse_notification(params)
        if notification.thread_id and notification.token_usage.total:
            self.set_thread_usage(notification.thread_id, notification.token_usage.total.usage())

    def _readers_of(self, message: RpcMessage) -> list[ThreadMessages]:
        """Who reads the messages of its thread. When the thread cannot be read, each reader checks the turn's id."""
        params = _thread_decoder.decode(message.params)
        if params.thread_id:
            messages = self._subscribers.get(params.thread_id)
            return [messages] if messages else []
        is_for_all = isinstance(message, RpcNotification) and (params.turn_id or params.turn.id)
        return list(self._subscribers.values()) if is_for_all or len(self._subscribers) == 1 else []

    def close_mcp_sessions(self) -> None:
        """Revoke the tokens of its threads."""
        for thread in self._threads.values():
            if thread.mcp_session:
                thread.mcp_session.close()


@asynccontextmanager
async def open_app_server(program: Program, within: float = INITIALIZE_TIMEOUT) -> AsyncGenerator[AppServer]:
    """An app-server after its handshake, ended with everything it started. Raises Refused, Unavailable or RpcError."""
    async with open_child(program) as child, open_connection(child) as connection, background_group() as group:
        server = AppServer(child, connection)
        group.start_soon(server.route)
        try:
            await server.initialize(within)
            yield server
        finally:
            server.close_mcp_sessions()
