"""A small application behind all middleware of the HTTP channel, over an open home, with clocks that a test moves."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx2
from msgspec import Struct
from starlette.responses import Response

import outrider
from outrider.channels.http.app import build_app
from outrider.channels.http.endpoints import ANONYMOUS, ApiCall, HttpContext, endpoint, json_response
from outrider.channels.http.middleware import AccessPolicy, build_middleware, key_store
from outrider.channels.http.rate_limits import RequestLimits
from outrider.config.secrets import Secret
from outrider.core.store_port import KeySpec, KeyStore
from outrider.store.keys import make_key

BASE_URL = "http://127.0.0.1:8642"


class TextBody(Struct):
    text: Any = None


@endpoint("GET", "/who", scope="read")
async def who(call: ApiCall) -> Response:
    """Describe the caller."""
    return json_response([call.caller.person, call.caller.key, sorted(call.caller.scopes)])


@endpoint("GET", "/health", scope="public")
async def health(call: ApiCall) -> Response:
    """Say whether the request has a key."""
    return Response("ok" if call.caller is ANONYMOUS else "authenticated")


@endpoint("POST", "/take")
async def take(call: ApiCall, body: TextBody) -> Response:
    """Parse a body."""
    return Response("taken")


@endpoint("GET", "/sessions", scope="read")
async def sessions(call: ApiCall) -> Response:
    """List the names of the caller's sessions."""
    return Response(",".join(session.name for session in await call.agent.sessions()))


class Gate:
    """An open home, a clock that only a test moves, and the application behind its middleware."""

    def __init__(self, agent: outrider.Agent, environment: str = "", limits: RequestLimits | None = None) -> None:
        self.agent, self.now, self.wall = agent, 1000.0, 1_000_000_000_000
        self.keys: KeyStore = key_store(agent)
        self.inside, self.go_on = anyio.Event(), anyio.Event()

        @endpoint("GET", "/stay", scope="read")
        async def stay(call: ApiCall) -> Response:
            """Respond when the test says so."""
            self.inside.set()
            await self.go_on.wait()
            return Response("stayed")

        policy = AccessPolicy(
            self.keys,
            ("agent.example.org",),
            Secret(environment),
            limits or RequestLimits(),
            lambda: self.now,
            lambda: self.wall,
        )
        self.app = build_app(HttpContext(agent, "test"), (who, health, take, sessions, stay), build_middleware(policy))

    async def key(self, name: str = "laptop", person: str = "ann", **more: Any) -> str:
        return (await make_key(self.keys, KeySpec(name, person, ("chat", "read"), **more)))[1]

    @asynccontextmanager
    async def client(self, key: str = "", peer: str = "10.0.0.1") -> AsyncGenerator[httpx2.AsyncClient]:
        transport = httpx2.ASGITransport(app=self.app, client=(peer, 4000))  # pyright: ignore[reportArgumentType]
        headers = {"authorization": f"Bearer {key}"} if key else {}
        async with httpx2.AsyncClient(transport=transport, base_url=BASE_URL, headers=headers) as client:
            yield client


def error_of(response: httpx2.Response) -> tuple[int, str]:
    """The status, and the code of the error."""
    error = response.json()["error"]
    assert set(response.json()) == {"error", "request_id"}
    assert (set(error), response.headers["x-request-id"]) == (
        {"message", "type", "code", "param"},
        response.json()["request_id"],
    )
    return response.status_code, error["code"]
