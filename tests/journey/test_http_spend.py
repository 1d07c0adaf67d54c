"""Spending limits of keys: a key at its limit starts nothing, and no running turn is cut."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

import outrider
from outrider.app.agent import Agent
from outrider.channels.http.app import ENDPOINTS, build_app
from outrider.channels.http.endpoints import HttpContext
from outrider.channels.http.middleware import key_store, middleware_for
from outrider.core.prompt import Prompt
from outrider.core.store_port import KeySpec
from outrider.store.keys import make_key, parse_spend
from outrider.testing.scripted_model import ScriptedModel, call, says, stalls
from tests.support.gate import error_of
from tests.support.http import serving_app
from tests.support.priced_model import PricedModel

pytestmark = pytest.mark.anyio

DAY = 86_400_000
HELLO: dict[str, Any] = {"model": "outrider", "messages": [{"role": "user", "content": "hello"}]}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}},
}


class SpendHome:
    """A home behind its real middleware, with a clock that a test moves."""

    def __init__(self, agent: Agent) -> None:
        self.agent, self.late = agent, 0
        self.now = HttpContext(agent, "").wall_clock()
        self.app = build_app(
            HttpContext(agent, "test", wall_clock=lambda: self.now + self.late), ENDPOINTS, middleware_for(agent)
        )
        self.url = ""

    @asynccontextmanager
    async def client(self, spend: str = "", name: str = "app") -> AsyncGenerator[tuple[httpx2.AsyncClient, str]]:
        """A client with a key of this limit, and the key's id."""
        spec = KeySpec(name, "ann", ("chat", "read"), spend=parse_spend(spend) if spend else None)
        key, text = await make_key(key_store(self.agent), spec)
        headers = {"authorization": f"Bearer {text}"}
        async with httpx2.AsyncClient(base_url=self.url, headers=headers, timeout=60, trust_env=False) as http_client:
            yield http_client, key.id

    async def spent(self, id: str) -> float:
        return await key_store(self.agent).spent(id)


@asynccontextmanager
async def spend_home(folder: Path, model: ScriptedModel) -> AsyncGenerator[SpendHome]:
    async with outrider.open(folder / "home", model=model) as agent:
        home = SpendHome(agent)
        async with serving_app(home.app) as home.url:
            yield home


@pytest.mark.parametrize(
    ("spend", "code", "has_end"),
    [
        ("1/day", "insufficient_quota", True),
        ("1/month", "insufficient_quota", True),
        ("1", "billing_hard_limit_reached", False),
    ],
)
async def test_a_key_at_its_spending_limit_is_refused_by_every_endpoint(
    tmp_path: Path, spend: str, code: str, has_end: bool
) -> None:
    async with spend_home(tmp_path, PricedModel(says("hello"))) as home, home.client(spend) as (client, id):
        first = await client.post("/v1/chat/completions", json=HELLO, headers={"idempotency-key": "k"})
        session = first.headers["x-session-id"]
        refused = [
            await client.post("/v1/chat/completions", json=HELLO),
            await client.post("/v1/chat/completions", json=HELLO | {"stream": True}),
            await client.post("/v1/chat/completions", json=HELLO, headers={"idempotency-key": "other"}),
            await client.post("/v1/chat/completions", json=HELLO, headers={"x-session-id": session}),
            await client.post("/v1/responses", json={"input": "hello"}),
            await client.post("/v1/responses", json={"input": "hello", "conversation": "new", "background": True}),
            await client.post(f"/v1/sessions/{session}/inputs", json={"text": "hello"}),
        ]
        again = await client.post("/v1/chat/completions", json=HELLO, headers={"idempotency-key": "k"})
        sessions = (await client.get("/v1/sessions")).json()["sessions"]
        entries = (await client.get(f"/v1/sessions/{session}/entries")).json()["entries"]
        spent = await home.spent(id)
    assert (first.status_code, again.status_code, again.json()) == (200, 200, first.json())
    assert [error_of(answer) for answer in refused] == [(429, code)] * 7
    assert {answer.json()["error"]["type"] for answer in refused} == {"insufficient_quota"}
    assert {"retry-after" in answer.headers for answer in refused} == {has_end}
    assert {answer.headers["x-should-retry"] for answer in refused} == {"false"}
    # Nothing was started or recorded for refused requests, and the earlier one was paid once.
    assert [one["id"] for one in sessions] == [session]
    assert ([entry["type"] for entry in entries], spent) == (["input", "started", "reply", "ended"], 1.0)


async def test_the_limit_is_reset_the_next_day(tmp_path: Path) -> None:
    async with spend_home(tmp_path, PricedModel(says("hello"))) as home, home.client("1/day") as (client, _):
        assert (await client.post("/v1/chat/completions", json=HELLO)).status_code == 200
        refused = await client.post("/v1/chat/completions", json=HELLO)
        wait = int(refused.headers["retry-after"])
        home.late = 1000 * wait - 1000
        early = await client.post("/v1/chat/completions", json=HELLO)
        home.late = 1000 * wait
        assert (await client.post("/v1/chat/completions", json=HELLO)).status_code == 200
    assert (error_of(early), 0 < wait <= DAY // 1000) == ((429, "insufficient_quota"), True)


async def test_a_running_turn_continues_past_the_limit_and_outputs_for_it_are_accepted(tmp_path: Path) -> None:
    model = PricedModel(says("", call("weather")), says("sunny"))
    order = HELLO | {"tools": [TOOL]}
    async with spend_home(tmp_path, model) as home, home.client("1/day") as (client, id):
        first = await client.post("/v1/chat/completions", json=order)
        message = first.json()["choices"][0]["message"]
        results = [
            {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "sun"},
        ]
        order["messages"] = [*order["messages"], message, *results]
        second = await client.post("/v1/chat/completions", json=order)
        spent = await home.spent(id)
        third = await client.post("/v1/chat/completions", json=HELLO)
    assert (second.json()["choices"][0]["message"]["content"], spent) == ("sunny", 2.0)
    assert error_of(third) == (429, "insufficient_quota")


async def test_a_conversation_that_began_elsewhere_is_paid_for_too(tmp_path: Path) -> None:
    """Outputs of calls that another server made start a turn without a new message."""
    asked = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    past: list[dict[str, Any]] = [
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "content": "", "tool_calls": [asked]},
        {"role": "tool", "tool_call_id": "c1", "content": "sun"},
    ]
    order = {"model": "outrider", "messages": past, "tools": [TOOL]}
    async with (
        spend_home(tmp_path, PricedModel(says("-"), says("sunny"))) as home,
        home.client("1/day") as (client, id),
    ):
        first = await client.post("/v1/chat/completions", json=order)
        second = await client.post("/v1/chat/completions", json=order)
        spent = await home.spent(id)
    assert (first.json()["choices"][0]["message"]["content"], spent) == ("sunny", 1.0)
    assert error_of(second) == (429, "insufficient_quota")


async def test_the_work_of_child_sessions_counts_for_the_same_key(tmp_path: Path) -> None:
    def leads(prompt: Prompt) -> Any:
        is_child = any("say hi" in str(message) for message in prompt.messages[:1])
        return says("hi") if is_child else says("", call("delegate", work="say hi"))

    async with spend_home(tmp_path, PricedModel(leads, says("it says hi"))) as home, home.client() as (client, id):
        answer = await client.post("/v1/chat/completions", json=HELLO)
        assert answer.json()["choices"][0]["message"]["content"] == "it says hi"
        assert await home.spent(id) == 3.0


async def test_each_key_pays_for_its_own_turns_and_without_a_limit_nothing_is_refused(tmp_path: Path) -> None:
    async with (
        spend_home(tmp_path, PricedModel(says("hello"))) as home,
        home.client("1/day") as (bounded, one),
        home.client(name="free") as (free, other),
    ):
        for _ in range(3):
            assert (await free.post("/v1/chat/completions", json=HELLO)).status_code == 200
        assert (await bounded.post("/v1/chat/completions", json=HELLO)).status_code == 200
        assert (await home.spent(one), await home.spent(other)) == (1.0, 3.0)


async def test_a_full_queue_is_429(tmp_path: Path) -> None:
    gate = stalls()
    async with spend_home(tmp_path, ScriptedModel(gate, says("done"))) as home, home.client() as (client, _):
        session = (await client.post("/v1/sessions", json={"name": "s"})).json()["id"]
        answers = [
            await client.post(f"/v1/sessions/{session}/inputs", json={"text": f"{number}"}) for number in range(21)
        ]
        chat = await client.post("/v1/chat/completions", json=HELLO, headers={"x-session-id": "s"})
        gate.release()
        with anyio.fail_after(60):
            await client.get(f"/v1/sessions/{session}/events", params={"until": "idle"})
        after = await client.post(f"/v1/sessions/{session}/inputs", json={"text": "now?"})
    assert [answer.status_code for answer in answers] == [202] * 20 + [429]
    assert ([error_of(each) for each in (answers[-1], chat)], after.status_code) == ([(429, "queue_full")] * 2, 202)
    assert (answers[-1].json()["error"]["type"], int(answers[-1].headers["retry-after"]) > 0) == (
        "rate_limit_error",
        True,
    )
