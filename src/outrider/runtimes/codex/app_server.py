"""One app-server process: many threads, each of which hears what is meant for it, and nothing else."""

import logging
import re
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import anyio
import msgspec
from anyio.abc import TaskStatus
from msgspec import Raw, Struct

import outrider
from outrider.runtimes.codex.protocol import parse_config_warning, parse_user_agent
from outrider.runtimes.codex.sandbox_policy import SandboxPolicy
from outrider.runtimes.jsonrpc.connection import (
    METHOD_NOT_FOUND,
    RequestId,
    RpcConnection,
    RpcMessage,
    RpcRequest,
    open_connection,
)
from outrider.runtimes.jsonrpc.errors import ProcessExited, RpcError
from outrider.runtimes.jsonrpc.process import Child, Program, open_child
from outrider.runtimes.mcp_server import McpSession

INITIALIZE_TIMEOUT = 60.0
_MAX_QUEUED = 256
"""Messages of one thread that wait for it before the others have to wait, too."""
_TESTED_VERSIONS = ((0, 163), (0, 166))
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
"""Notifications that are not sent to us: some are many, none is needed."""
log = logging.getLogger("outrider.codex")


class _ThreadParams(Struct, rename="camel"):
    thread_id: str = ""


_thread_decoder = msgspec.json.Decoder(_ThreadParams)


class ThreadMessages:
    """What one thread hears. For one listener."""

    def __init__(self, server: "AppServer") -> None:
        self._server = server
        self._sender, self._receiver = anyio.create_memory_object_stream[RpcMessage](_MAX_QUEUED)

    async def next(self) -> RpcMessage:
        """Raises ChildGone when the process is gone and all that it said was heard."""
        try:
            return await self._receiver.receive()
        except anyio.EndOfStream:
            raise self._server.exit_error() from None

    async def put(self, message: RpcMessage) -> None:
        try:
            await self._sender.send(message)
        except anyio.BrokenResourceError:
            log.debug("nobody listens any more")

    def end(self) -> None:
        self._sender.close()

    def close(self) -> None:
        self._receiver.close()


class AppServer:
    """A running app-server, past its handshake."""

    def __init__(self, child: Child, peer: RpcConnection) -> None:
        self.marker = child.marker
        self.pid = child.pid
        self.thread_models: dict[str, str] = {}
        """Threads that this process has open, each with the model it asks now."""
        self.default_model = ""
        """The model that Codex asks where we name none, once that is known."""
        self.sandbox_policies: dict[str, SandboxPolicy] = {}
        """On which terms the commands of each of its threads run."""
        self.mcp_sessions: dict[str, McpSession] = {}
        """Those of its threads that call our tools over MCP."""
        self.is_logged_in = False
        """Whether it was found to be logged in."""
        self.users = 0
        self.idle_since = anyio.current_time()
        self._child = child
        self._connection = peer
        self._threads: dict[str, ThreadMessages] = {}
        self._config_warning = ""
        """What it has said against a file of its settings."""
        self._retired = anyio.Event()
        self.closed = anyio.Event()
        """Set when nothing of it is left."""

    @property
    def is_alive(self) -> bool:
        return not self._retired.is_set() and not self._child.is_closed

    def exit_error(self) -> ProcessExited:
        return self._child.exit_error()

    def retire(self) -> None:
        """No turn is carried by it any more; it is ended, with all it started."""
        self._retired.set()

    async def request(self, method: str, params: dict[str, Any], patience: float | None = None) -> Raw:
        """Raises RpcError, NoAnswer or ChildGone."""
        return await self._connection.request(method, params, patience)

    async def respond(self, id: RequestId, result: Any) -> None:
        await self._connection.respond(id, result)

    async def respond_error(self, id: RequestId, error: RpcError) -> None:
        await self._connection.respond_error(id, error)

    @contextmanager
    def subscribe(self, thread: str) -> Generator[ThreadMessages]:
        """Hear what is said to this thread from now on."""
        line = self._threads[thread] = ThreadMessages(self)
        if self._child.is_closed:
            line.end()
        try:
            yield line
        finally:
            if self._threads.get(thread) is line:
                del self._threads[thread]
            line.end()
            line.close()

    @contextmanager
    def in_use(self) -> Generator[None]:
        self.users += 1
        try:
            yield
        finally:
            self.users -= 1
            self.idle_since = anyio.current_time()

    async def initialize(self, patience: float = INITIALIZE_TIMEOUT) -> None:
        """Say who we are, once. Raises what a request raises."""
        who = {"name": "outrider", "title": "Outrider", "version": outrider.__version__}
        can = {"experimentalApi": True, "optOutNotificationMethods": _UNUSED_NOTIFICATIONS}
        answer = await self.request("initialize", {"clientInfo": who, "capabilities": can}, patience)
        await self._connection.notify("initialized")
        self.check_version(parse_user_agent(answer))

    async def config_error(self) -> str:
        """What keeps Codex from reading its own settings, with file and line where it says so; empty when nothing does.

        It goes on with its defaults then, among them another provider and another login. Raises Unavailable.
        """
        try:
            await self.request("config/read", {})
        except RpcError as error:
            # An older one may not know the request.
            return (self._config_warning or " ".join(error.message.split())) if "configuration" in error.message else ""
        return ""

    @staticmethod
    def check_version(agent: str) -> None:
        """Say in the log when this is a Codex that nobody has tried with us."""
        found = re.search(r"/(\d+)\.(\d+)\.", agent)
        version = (int(found[1]), int(found[2])) if found else (0, 0)
        if not _TESTED_VERSIONS[0] <= version <= _TESTED_VERSIONS[1]:
            tested = " to ".join(f"{major}.{minor}" for major, minor in _TESTED_VERSIONS)
            log.warning("this is %s; Outrider was tested with Codex %s", agent or "an unknown Codex", tested)

    async def route(self) -> None:
        """Give each thread what is meant for it, until the process is gone."""
        try:
            async for message in self._connection.messages():
                if message.method == "configWarning":
                    self._config_warning = parse_config_warning(message.params) or self._config_warning
                line = self._threads.get(_thread_of(message.params))
                if line:
                    await line.put(message)
                elif isinstance(message, RpcRequest):
                    await self.respond_error(message.id, RpcError(METHOD_NOT_FOUND, "nobody is there to answer this"))
        except ProcessExited as gone:
            log.info("%s", gone)
        finally:
            self.retire()
            for line in self._threads.values():
                line.end()

    def close_mcp_sessions(self) -> None:
        """Nobody calls our tools from there any more."""
        for guest in self.mcp_sessions.values():
            guest.close()

    async def until_retired(self) -> None:
        """Wait until no more is wanted of it, or until it has ended and its last words were heard."""
        await self._retired.wait()


async def run_app_server(program: Program, *, task_status: TaskStatus[AppServer]) -> None:
    """Run a process until it ends, is retired, or this is cancelled. Raises only before it is ready."""
    server: AppServer | None = None
    try:
        async with open_child(program) as child, open_connection(child) as peer:
            server = AppServer(child, peer)
            async with anyio.create_task_group() as group:
                group.start_soon(server.route)
                await server.initialize()
                task_status.started(server)
                await server.until_retired()
                group.cancel_scope.cancel()
    except ExceptionGroup as several:
        raise several.exceptions[0] from several
    finally:
        if server:
            server.close_mcp_sessions()
            server.closed.set()


def _thread_of(params: Raw) -> str:
    try:
        return _thread_decoder.decode(params).thread_id
    except msgspec.DecodeError:
        return ""
