"""The other side of a remote runtime: another Outrider in a thread, and a server that only knows chat completions."""

import json
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

import outrider
from outrider.app.agent import Agent
from outrider.channels.http.app import ENDPOINTS
from outrider.config.load import load
from outrider.core.events import Entry
from tests.support.http import key_of, serving, serving_app

KEY = key_of("gateway", "chat,approve")


class FarOutriderHome:
    """Another Outrider that serves its API, in a thread of its own."""

    def __init__(self, portal: BlockingPortal, agent: Agent, url: str) -> None:
        self.url = url
        self._portal = portal
        self._agent = agent.for_person("gateway", can_approve=True)

    def settings(self) -> dict[str, str]:
        """Settings of a home that forwards its turns to this one."""
        return {"remote.url": self.url, "remote.key": KEY, "model.name": "nobody:knows"}

    def journals(self) -> list[list[Entry]]:
        """The journals of its sessions, latest first."""

        async def read() -> list[list[Entry]]:
            return [list(await self._agent.journal(session)) for session in await self._agent.sessions()]

        return self._portal.call(read)

    def workspaces(self) -> list[Path]:
        async def read() -> list[Path]:
            return [Path(session.workspace) for session in await self._agent.sessions()]

        return self._portal.call(read)

    def effects(self, name: str = "did") -> int:
        """How many lines its sessions have written to files of this name."""
        files = [folder / name for folder in self.workspaces()]
        return sum(len(file.read_text().splitlines()) for file in files if file.exists())

    def call(self, function: Callable[[Agent], Any]) -> Any:
        """Call an operation of its agent in its own event loop."""
        return self._portal.call(function, self._agent)


@contextmanager
def far_outrider(folder: Path, settings: Mapping[str, str]) -> Generator[FarOutriderHome]:
    """Run another Outrider with these settings during the block."""

    @asynccontextmanager
    async def serve() -> AsyncGenerator[tuple[Agent, str]]:
        config = load(folder, {}, dict(settings))
        async with outrider.open(config=config) as agent, serving(agent, ENDPOINTS) as url:
            yield agent, url

    folder.mkdir(mode=0o700, exist_ok=True)
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(serve()) as (agent, url):
        yield FarOutriderHome(portal, agent, url)


class ForeignServer:
    """An OpenAI-compatible server that knows nothing of Outrider. A test says how it answers."""

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[tuple[dict[str, str], dict[str, Any]]] = []
        """Headers and body of each chat completion."""
        self.answer: Callable[[dict[str, Any]], Response] = lambda body: stream("Hello ", "there.")
        self.closed = anyio.Event()
        """Set when a client has closed a stream before its end."""

    def app(self) -> Starlette:
        routes = [
            Route("/v1/chat/completions", self._complete, methods=["POST"]),
            Route("/v1/models", self._models),
        ]
        return Starlette(routes=routes)

    async def _models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": "foreign-1"}, {"id": "foreign-2"}]})

    async def _complete(self, request: Request) -> Response:
        body = json.loads(await request.body())
        self.requests.append((dict(request.headers), body))
        return self.answer(body)

    def stall_after(self, *parts: str) -> Callable[[dict[str, Any]], Response]:
        """Stream these parts, then nothing until the client leaves."""

        async def body() -> AsyncGenerator[bytes]:
            try:
                for part in parts:
                    yield chunk(part)
                await anyio.sleep_forever()
            finally:
                self.closed.set()

        return lambda request: StreamingResponse(body(), media_type="text/event-stream")


@asynccontextmanager
async def foreign_server() -> AsyncGenerator[ForeignServer]:
    server = ForeignServer()
    async with serving_app(server.app()) as url:
        server.url = url
        yield server


def chunk(text: str = "", finish: str | None = None, **more: Any) -> bytes:
    """One event of a streamed completion."""
    delta = {"content": text} if text else {}
    data = {"object": "chat.completion.chunk", "model": "foreign-1", **more}
    data.setdefault("choices", [{"index": 0, "delta": delta, "finish_reason": finish}])
    return b"data: " + json.dumps(data).encode() + b"\n\n"


def stream(*parts: str, finish: str = "stop") -> Response:
    """A complete streamed completion."""
    usage = {"prompt_tokens": 11, "completion_tokens": 5}
    events = [*map(chunk, parts), chunk(finish=finish), chunk(choices=[], usage=usage), b"data: [DONE]\n\n"]
    return raw(*events)


def raw(*pieces: bytes, media_type: str = "text/event-stream", status: int = 200) -> Response:
    """A response of these pieces."""

    async def body() -> AsyncGenerator[bytes]:
        for piece in pieces:
            yield piece

    return StreamingResponse(body(), media_type=media_type, status_code=status)
