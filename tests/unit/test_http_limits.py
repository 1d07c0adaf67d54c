"""Limits of the HTTP channel: rate, concurrency and sizes, and their error responses."""

from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

import outrider
from outrider.channels.http.errors import HttpError
from outrider.channels.http.middleware import BodyLimitMiddleware
from outrider.channels.http.rate_limits import RateLimiter, RequestLimits
from outrider.testing.scripted_model import ScriptedModel
from tests.support.gate import Gate, error_of
from tests.support.http import serving_app

pytestmark = pytest.mark.anyio


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncGenerator[outrider.Agent]:
    async with outrider.open(tmp_path / "home", model=ScriptedModel(), workspace=tmp_path) as home:
        yield home


@pytest.fixture
def gate(agent: outrider.Agent) -> Gate:
    return Gate(agent)


async def test_too_many_headers_are_refused(gate: Gate) -> None:
    async with gate.client(await gate.key()) as client:
        answer = await client.get("/who", headers={f"x-{number}": "1" for number in range(100)})
    assert error_of(answer) == (431, "too_many_headers")


async def test_a_keys_rate_is_limited(gate: Gate) -> None:
    slow, other = await gate.key("slow", rate=2), await gate.key("other")
    async with gate.client(slow) as client, gate.client(other) as beside:
        answers = [await client.get("/who") for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert (error_of(answers[2])[1], answers[2].headers["retry-after"]) == ("rate_limit_exceeded", "30")
        assert (await beside.get("/who")).status_code == 200
        gate.now += 30
        assert [(await client.get("/who")).status_code for _ in range(2)] == [200, 429]


async def test_requests_without_a_key_are_rate_limited_too(agent: outrider.Agent) -> None:
    gate = Gate(agent, limits=RequestLimits(rate=2))
    async with gate.client() as client, gate.client(peer="10.0.0.2") as other:
        assert [(await client.get("/health")).status_code for _ in range(3)] == [200, 200, 429]
        assert (await other.get("/health")).status_code == 200


async def test_a_keys_concurrency_is_limited(gate: Gate) -> None:
    key = await gate.key(concurrent=1)
    async with gate.client(key) as client, anyio.create_task_group() as group:

        async def stay() -> None:
            assert (await client.get("/stay")).text == "stayed"

        group.start_soon(stay)
        with anyio.fail_after(60):
            await gate.inside.wait()
        answer = await client.get("/who")
        assert (error_of(answer), answer.headers["retry-after"]) == ((429, "concurrency_limit"), "1")
        gate.go_on.set()
    async with gate.client(key) as client:
        assert (await client.get("/who")).status_code == 200


def test_the_rate_limiter_remembers_a_bounded_number_of_callers() -> None:
    now = 0.0
    buckets = RateLimiter(max_names=100, now=lambda: now)
    for number in range(10_000):
        assert buckets.take(f"peer {number}", 1) == 0.0
    assert len(buckets) == 100
    assert buckets.take("peer 9999", 1) == 60.0
    now = 59.0
    assert round(buckets.take("peer 9999", 1), 6) == 1.0
    now = 1e9
    assert [buckets.take("peer 9999", 1) > 0 for _ in range(2)] == [False, True]


async def test_a_body_with_a_declared_length_that_is_too_large_is_refused_unread(gate: Gate) -> None:
    async def never() -> AsyncIterator[bytes]:
        raise AssertionError("the body was read")
        yield b""

    async with gate.client(await gate.key()) as client:
        for length, answer in (("10485761", 413), ("9" * 30, 413), ("-1", 400), ("ten", 400)):
            response = await client.post("/take", content=never(), headers={"content-length": length})
            assert (error_of(response)[0], response.headers["connection"]) == (answer, "close")
        assert (await client.post("/take", content=b'{"text": "hello"}')).text == "taken"


async def test_a_body_that_turns_out_too_large_is_refused(gate: Gate) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 65_536
            yield b" " * 65_536

    async with (
        serving_app(gate.app) as url,
        httpx2.AsyncClient(base_url=url, timeout=60, trust_env=False) as client,
    ):
        headers = {"authorization": f"Bearer {await gate.key()}"}
        try:
            answer = await client.post("/take", content=endless(), headers=headers)
        except httpx2.TransportError:  # the connection may be closed before the client has read why
            pass
        else:
            assert error_of(answer) == (413, "body_too_large")
        assert sent < 40 * 1024 * 1024
        assert (await client.post("/take", content=b"{}", headers=headers)).text == "taken"


async def test_the_largest_allowed_body_is_accepted() -> None:
    seen: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (message := await receive())["type"] == "http.request":
            seen.append(len(message["body"]))

    pieces = [{"type": "http.request", "body": b"x" * 5, "more_body": True}] * 2 + [{"type": "http.disconnect"}]
    coming = iter(pieces)

    async def receive() -> Any:
        return next(coming)

    async def send(message: Any) -> None:
        raise AssertionError(message)

    await BodyLimitMiddleware(app, 10)({"type": "http", "headers": []}, receive, send)
    assert seen == [5, 5]


async def test_all_bodies_together_are_limited_and_their_memory_is_released() -> None:
    held, statuses = anyio.Event(), list[int]()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        try:
            await receive()
        except HttpError as error:
            statuses.append(error.status)
            return
        statuses.append(200)
        await held.wait()

    async def receive() -> Any:
        return {"type": "http.request", "body": b"x" * 6, "more_body": False}

    async def send(message: Any) -> None:
        raise AssertionError(message)

    bounded = BodyLimitMiddleware(app, 10, max_total=12)
    scope: dict[str, Any] = {"type": "http", "headers": []}
    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(bounded, scope, receive, send)
            await anyio.wait_all_tasks_blocked()
        assert statuses == [200, 200, 503]
        held.set()
    await bounded(scope, receive, send)
    assert statuses == [200, 200, 503, 200]


@pytest.mark.parametrize(
    "body",
    [b"[" * 100_000, b'{"text":' * 100_000, b'{"text":' + b"[" * 100_000 + b"]" * 100_000 + b"}", b'{"x":' * 100_000],
    ids=["open lists", "open objects", "closed lists", "unknown fields"],
)
async def test_a_deeply_nested_body_is_a_bad_request(gate: Gate, body: bytes) -> None:
    async with gate.client(await gate.key()) as client:
        answer = await client.post("/take", content=body)
        assert error_of(answer)[0] == 400
        assert (await client.post("/take", content=b"{}")).text == "taken"
