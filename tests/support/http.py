"""The HTTP channel on a loopback port, in the event loop of the test, and clients for it."""

import socket
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import anyio
import httpx2
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from outrider.app.agent import Agent
from outrider.channels.http.app import Middleware, build_app
from outrider.channels.http.endpoints import Caller, Endpoint, HttpContext
from outrider.testing.scripted_server.server import LoopbackServer


def key_of(person: str = "owner", scopes: str = "chat,admin") -> str:
    """A key that `any_key` accepts: it names its person and scopes."""
    return f"{person}/{scopes}"


class _AnyKey:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            key = dict(scope["headers"]).get(b"authorization", b"").decode().removeprefix("Bearer ")
            person, _, scopes = key.partition("/")
            if person:
                caller = Caller(person, "test", frozenset(scopes.split(",")))
                scope.setdefault("state", {})["caller"] = caller
        await self._app(scope, receive, send)


def any_key(app: ASGIApp) -> ASGIApp:
    """Middleware that accepts every key made by `key_of`."""
    return _AnyKey(app)


@asynccontextmanager
async def serving(
    agent: Agent, endpoints: Sequence[Endpoint], middleware: Sequence[Middleware] = (any_key,)
) -> AsyncGenerator[str]:
    """Serve these endpoints over an open home while the block runs: their base URL, without a trailing slash."""
    async with serving_app(build_app(HttpContext(agent, "test"), endpoints, middleware)) as url:
        yield url


@asynccontextmanager
async def serving_app(app: ASGIApp) -> AsyncGenerator[str]:
    """Serve an application while the block runs."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(128)
        config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", ws="none", date_header=False)
        server = LoopbackServer(config)
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: server.serve(sockets=[listener]))
            try:
                yield f"http://127.0.0.1:{listener.getsockname()[1]}"
            finally:
                server.stop_event.set()


@asynccontextmanager
async def client(url: str, person: str = "owner", scopes: str = "chat,admin") -> AsyncGenerator[httpx2.AsyncClient]:
    """A client with a key of this person; without a key for an empty person."""
    headers = {"authorization": f"Bearer {key_of(person, scopes)}"} if person else {}
    async with httpx2.AsyncClient(base_url=url, headers=headers, timeout=60, trust_env=False) as session:
        yield session
