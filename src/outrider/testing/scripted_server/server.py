"""The scripted server: runs in a thread of a test, or as a process of its own."""

import asyncio
import socket
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import Self

import anyio
import uvicorn
from anyio.abc import TaskStatus
from anyio.from_thread import BlockingPortal, start_blocking_portal

from outrider.core.errors import Refused
from outrider.testing.scripted_server.app import RecordedRequest, RequestLog, ScriptedApp
from outrider.testing.scripted_server.script import Script

_HOST = "127.0.0.1"


class LoopbackServer(uvicorn.Server):
    """A uvicorn server that stops at once, open requests included, and does not handle signals."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.stop_event = anyio.Event()

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def main_loop(self) -> None:
        await self.stop_event.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        open_requests = list(self.server_state.tasks)
        for request in open_requests:
            request.cancel()
        await asyncio.gather(*open_requests, return_exceptions=True)
        for connection in list(self.server_state.connections):
            connection.shutdown()


class ScriptedServer:
    """A scripted model on a loopback port.

    with ScriptedServer(script(says("hi"))) as server: … server.url … server.requests
    """

    def __init__(self, script: Script | None = None, port: int = 0, latency: float = 0.0) -> None:
        """Bind the port. Without a script, the server answers as the practice model. Raises Refused."""
        self._log = RequestLog()
        self._app = ScriptedApp(script or Script(), self._log, latency)
        config = uvicorn.Config(
            self._app, log_config=None, access_log=False, lifespan="off", server_header=False, date_header=False
        )
        self._server = LoopbackServer(config)
        self._portal: BlockingPortal | None = None
        self._open = ExitStack()
        self._socket = _listen(port)
        self._open.callback(self._socket.close)
        self.root = f"http://{_HOST}:{self._socket.getsockname()[1]}"
        """Base URL for Anthropic's client."""
        self.url = f"{self.root}/v1"
        """Base URL for OpenAI's clients."""

    @property
    def requests(self) -> Sequence[RecordedRequest]:
        """The last 1,000 requests, oldest first."""
        return self._log.all()

    def wait(self, count: int, within: float = 60.0) -> Sequence[RecordedRequest]:
        """Block until this many requests have arrived, and return them. Raises TimeoutError."""
        return self._log.wait(count, within)

    async def wait_async(self, count: int, within: float = 60.0) -> Sequence[RecordedRequest]:
        """Wait until this many requests have arrived, and return them. Raises TimeoutError."""
        return await anyio.to_thread.run_sync(self._log.wait, count, within)

    def release(self) -> None:
        """Continue the requests that are stalled now."""
        if self._portal is not None:
            self._portal.call(self._app.release)

    async def serve(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serve requests until `stop` is called in the same event loop."""
        task_status.started()
        await self._server.serve(sockets=[self._socket])

    def stop(self) -> None:
        self._server.stop_event.set()

    def __enter__(self) -> Self:
        with ExitStack() as starting:
            starting.push(self._open)
            self._portal = starting.enter_context(start_blocking_portal())
            future, _ = self._portal.start_task(self.serve)
            starting.callback(future.result)
            starting.callback(self._portal.call, self.stop)
            self._open = starting.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the server and release the port."""
        self._open.close()


@asynccontextmanager
async def open_scripted_server(script: Script | None = None, latency: float = 0.0) -> AsyncGenerator[ScriptedServer]:
    """A scripted server in its own thread, as an async context manager."""
    server = await anyio.to_thread.run_sync(ScriptedServer(script, latency=latency).__enter__)
    try:
        yield server
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(server.close)


def _listen(port: int) -> socket.socket:
    # asyncio sets TCP_NODELAY only on sockets that name their protocol.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((_HOST, port))
        listener.listen(1_024)
    except OSError as error:
        listener.close()
        raise Refused(f"port {port} of {_HOST} cannot be used: {error}") from error
    return listener
