"""A small application behind all guards of the HTTP channel, over an open home, with clocks that a test moves."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx2
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

import outrider
from outrider.channels.http.app import build_app
from outrider.channels.http.endpoints import parse_body, route
from outrider.channels.http.inputs import HttpContext, agent_of, caller
from outrider.channels.http.middleware import AccessPolicy, build_middleware, key_store
from outrider.channels.http.rate_limits import RequestLimits
from outrider.config.secrets import Secret
from outrider.core.store_port import KeySpec, KeyStore
from outrider.store.keys import make_key

HERE = "http://127.0.0.1:8642"


class Said(Struct):
    text: Any = None


async def who(request: Request) -> Response:
    found = caller(request)
    return Response(json.dumps([found.person, found.key, sorted(found.scopes)]), media_type="application/json")


async def health(request: Request) -> Response:
    return Response("known" if "caller" in request.scope["state"] else "ok")


async def take(request: Request) -> Response:
    await parse_body(request, Said)
    return Response("taken")


async def sessions(request: Request) -> Response:
    return Response(",".join(session.name for session in await agent_of(request, "read").sessions()))


class Gate:
    """An open home, a clock that stands until it is moved, and the application behind its guards."""

    def __init__(self, agent: outrider.Agent, environment: str = "", limits: RequestLimits | None = None) -> None:
        self.agent, self.now, self.wall = agent, 1000.0, 1_000_000_000_000
        self.keys: KeyStore = key_store(agent)
        self.inside, self.go_on = anyio.Event(), anyio.Event()
        routes = [
            route("/who", who, "GET"),
            route("/health", health, "GET"),
            route("/take", take, "POST"),
            route("/sessions", sessions, "GET"),
            route("/stay", self._stay, "GET"),
        ]
        terms = AccessPolicy(
            self.keys,
            ("agent.example.org",),
            Secret(environment),
            limits or RequestLimits(),
            lambda: self.now,
            lambda: self.wall,
        )
        self.app = build_app(HttpContext(agent, "test"), routes, build_middleware(terms))

    async def _stay(self, request: Request) -> Response:
        self.inside.set()
        await self.go_on.wait()
        return Response("stayed")

    async def key(self, name: str = "laptop", person: str = "ann", **more: Any) -> str:
        return (await make_key(self.keys, KeySpec(name, person, ("chat", "read"), **more)))[1]

    @asynccontextmanager
    async def client(self, key: str = "", peer: str = "10.0.0.1") -> AsyncGenerator[httpx2.AsyncClient]:
        transport = httpx2.ASGITransport(app=self.app, client=(peer, 4000))  # pyright: ignore[reportArgumentType]
        headers = {"authorization": f"Bearer {key}"} if key else {}
        async with httpx2.AsyncClient(transport=transport, base_url=HERE, headers=headers) as opened:
            yield opened


def told(answer: httpx2.Response) -> tuple[int, str]:
    """The status, and the code of the error."""
    error = answer.json()["error"]
    assert set(answer.json()) == {"error", "request_id"}
    assert (set(error), answer.headers["x-request-id"]) == (
        {"message", "type", "code", "param"},
        answer.json()["request_id"],
    )
    return answer.status_code, error["code"]
