"""The sessions API: a message is recorded once, and sessions of other people do not exist."""

import base64
import re
import sqlite3
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

import outrider
from outrider.app.agent import Agent
from outrider.channels.http import admin, app, health, questions, sessions, tasks
from outrider.channels.http.endpoints import Endpoint
from outrider.core.events import Input
from outrider.core.prompt import UserMessage
from outrider.testing.scripted_model import ScriptedModel, says, stalls
from tests.shape.repository import ROOT
from tests.support.http import client, serving

pytestmark = pytest.mark.anyio

ENDPOINTS = (*sessions.ENDPOINTS, *questions.ENDPOINTS, *tasks.ENDPOINTS, *health.ENDPOINTS)
PIXEL = b"\x89PNG\r\n\x1a\n" + bytes(20)


@asynccontextmanager
async def serving_home(folder: Path, model: ScriptedModel) -> AsyncGenerator[tuple[Agent, str]]:
    async with outrider.open(folder / "home", model=model) as agent, serving(agent, ENDPOINTS) as url:
        yield agent, url


async def create(owner: httpx2.AsyncClient, name: str = "") -> str:
    return (await owner.post("/v1/sessions", json={"name": name})).json()["id"]


async def entries_when_idle(owner: httpx2.AsyncClient, session: str) -> list[dict[str, Any]]:
    """The session's entries, once it is idle."""
    with anyio.fail_after(60):
        await owner.get(f"/v1/sessions/{session}/events", params={"until": "idle"})
    return (await owner.get(f"/v1/sessions/{session}/entries")).json()["entries"]


def code(answer: httpx2.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


async def test_a_session_is_created_used_read_found_and_deleted(tmp_path: Path) -> None:
    async with serving_home(tmp_path, ScriptedModel(says("blue, as ever"))) as (_, url), client(url) as owner:
        made = await owner.post("/v1/sessions", json={"name": "colours"})
        again = await owner.post("/v1/sessions", json={"name": "colours"})
        session = made.json()["id"]
        posted = await owner.post(f"/v1/sessions/{session}/inputs", json={"text": "which colour?"})
        entries = await entries_when_idle(owner, session)
        session_view = await owner.get("/v1/sessions/colours")
        session_list = await owner.get("/v1/sessions")
        hits = await owner.get("/v1/sessions/search", params={"q": "ever"})
        deleted = await owner.delete(f"/v1/sessions/{session}")
        gone = await owner.get(f"/v1/sessions/{session}")
    assert (made.status_code, again.status_code, again.json()) == (201, 200, made.json())
    assert (posted.status_code, posted.json()) == (202, {"session": session, "seq": 1, "at": entries[0]["at"]})
    assert [entry["type"] for entry in entries] == ["input", "started", "reply", "ended"]
    assert entries[0] == {
        "type": "input",
        "seq": 1,
        "at": entries[0]["at"],
        "text": "which colour?",
        "person": "owner",
        "address": f"sessions:{session}",
        "payer": "test",
    }
    assert session_view.json() == {
        **made.json(),
        "title": "which colour?",
        "updated": session_view.json()["updated"],
        "head": 4,
    }
    assert (session_view.json()["runtime"], session_list.json()) == (
        "native",
        {"sessions": [session_view.json()]},
    )
    assert [(one["session"], one["seq"]) for one in hits.json()["found"]] == [(session, 3)]
    assert (deleted.status_code, deleted.content) == (204, b"")
    assert code(gone) == (404, "not_found")


async def test_a_session_is_renamed_unless_the_name_is_taken(tmp_path: Path) -> None:
    async with (
        serving_home(tmp_path, ScriptedModel(says("blue"))) as (agent, url),
        client(url) as owner,
        client(url, "bob") as bob,
    ):
        session, other = await create(owner, "colours"), await create(owner, "shapes")
        await owner.post(f"/v1/sessions/{session}/inputs", json={"text": "which colour?"})
        await entries_when_idle(owner, session)
        before = (await owner.get(f"/v1/sessions/{session}")).json()
        renamed = await owner.patch("/v1/sessions/colours", json={"name": "paint"})
        same = await owner.patch("/v1/sessions/paint", json={"name": "paint"})
        hits = await owner.get("/v1/sessions/search", params={"q": "blue"})
        taken = [await owner.patch("/v1/sessions/paint", json={"name": name}) for name in ("shapes", other)]
        bad = [
            await owner.patch("/v1/sessions/paint", json={"name": name}) for name in ("", " x", "a\nb", "x" * 101, 7)
        ]
        missing = [await owner.get("/v1/sessions/colours"), await bob.patch("/v1/sessions/paint", json={"name": "x"})]
        theirs = (await bob.post("/v1/sessions", json={"name": "x"})).json()["id"]
        as_theirs = await owner.patch("/v1/sessions/paint", json={"name": "x"})
        reserved = await agent.session("chat " + "0" * 32)
        kept_name = await owner.patch(f"/v1/sessions/{reserved.id}", json={"name": "mine"})
    assert (renamed.status_code, renamed.json(), same.json()) == (200, {**before, "name": "paint"}, renamed.json())
    assert [one["name"] for one in hits.json()["found"]] == ["paint"]
    assert [code(one) for one in taken] == [(409, "taken")] * 2
    assert [one.status_code for one in bad] == [400] * 5
    assert [code(one) for one in missing] == [(404, "not_found")] * 2
    assert (as_theirs.json()["name"], theirs != session, code(kept_name)) == ("x", True, (400, "refused"))


@pytest.mark.promise("S5")
async def test_a_sessions_id_is_128_random_bits(tmp_path: Path) -> None:
    async with serving_home(tmp_path, ScriptedModel()) as (_, url), client(url) as owner:
        ids = [await create(owner) for _ in range(64)]
    assert {len(bytes.fromhex(id)) for id in ids} == {16}
    # Of random bits every one is 0 in some of 64 ids and 1 in others; of a counter or a clock most are not.
    assert all(0 < sum(int(id, 16) >> bit & 1 for id in ids) < 64 for bit in range(128))


async def test_entries_are_read_page_by_page(tmp_path: Path) -> None:
    async with serving_home(tmp_path, ScriptedModel(says("a"), says("b"))) as (_, url), client(url) as owner:
        session = await create(owner)
        for word in ("one", "two"):
            await owner.post(f"/v1/sessions/{session}/inputs", json={"text": word})
            whole = await entries_when_idle(owner, session)
        pages: list[dict[str, Any]] = []
        while True:
            after = pages[-1]["seq"] if pages else 0
            page = await owner.get(f"/v1/sessions/{session}/entries", params={"after": after, "limit": 3})
            pages += page.json()["entries"]
            if pages[-1]["seq"] == page.json()["head"]:
                break
    assert pages == whole
    assert len(pages) == 8


@pytest.mark.promise("L1b")
async def test_the_same_idempotency_key_is_one_input_and_one_reply(tmp_path: Path) -> None:
    async with serving_home(tmp_path, ScriptedModel(says("once"), says("twice"))) as (_, url), client(url) as owner:
        session = await create(owner)
        path, key = f"/v1/sessions/{session}/inputs", {"Idempotency-Key": "abc"}
        first = await owner.post(path, json={"text": "pay"}, headers=key)
        answers: list[httpx2.Response] = []

        async def again() -> None:
            answers.append(await owner.post(path, json={"text": "pay"}, headers=key))

        async with anyio.create_task_group() as group:
            for _ in range(10):
                group.start_soon(again)
        other = await owner.post(path, json={"text": "pay more"}, headers=key)
        entries = await entries_when_idle(owner, session)
    assert {answer.status_code for answer in answers} == {202}
    assert [answer.json() for answer in answers] == [first.json()] * 10
    assert code(other) == (400, "idempotency_key")
    assert other.json()["error"]["message"].startswith("Idempotency-Key 'abc' was used before with a different message")
    assert [entry["text"] for entry in entries if entry["type"] == "reply"] == ["once"]


async def test_an_image_reaches_the_model_and_anything_else_is_refused(tmp_path: Path) -> None:
    model = ScriptedModel(says("a pixel"))
    async with serving_home(tmp_path, model) as (agent, url), client(url) as owner:
        session = await create(owner)
        path = f"/v1/sessions/{session}/inputs"
        images = [base64.b64encode(PIXEL).decode()]
        assert (await owner.post(path, json={"text": "what is this?", "images": images})).status_code == 202
        await entries_when_idle(owner, session)
        (reserved,) = [entry.body for entry in await agent.journal(await agent.find(session), 0, 1)]
        assert isinstance(reserved, Input)
        assert agent.home.blobs.get(reserved.images[0].blob) == PIXEL
        no_picture = await owner.post(path, json={"images": [base64.b64encode(b"<svg/>").decode()]})
        no_base64 = await owner.post(path, json={"images": ["%%%"]})
    assert model.prompts[0].messages == [UserMessage("what is this?", images=reserved.images)]
    assert (code(no_picture), code(no_base64)) == ((400, "refused"), (400, "invalid_body"))


@pytest.mark.promise("S5")
async def test_another_persons_session_and_its_events_do_not_exist(tmp_path: Path) -> None:
    async with (
        serving_home(tmp_path, ScriptedModel(says("a secret"))) as (_, url),
        client(url) as owner,
        client(url, "other", "chat,approve") as other_person,
    ):
        session = await create(owner, "diary")
        await owner.post(f"/v1/sessions/{session}/inputs", json={"text": "dear diary"})
        before = await entries_when_idle(owner, session)
        tried = [
            await other_person.get(f"/v1/sessions/{session}"),
            await other_person.get("/v1/sessions/diary"),
            await other_person.get(f"/v1/sessions/{session}/entries"),
            await other_person.get(f"/v1/sessions/{session}/events"),
            await other_person.post(f"/v1/sessions/{session}/inputs", json={"text": "hello"}),
            await other_person.post(f"/v1/sessions/{session}/stop"),
            await other_person.post(f"/v1/sessions/{session}/questions/1", json={"answer": "once"}),
            await other_person.get("/v1/tasks", params={"session": session}),
            await other_person.delete(f"/v1/sessions/{session}"),
        ]
        lists = [(await other_person.get(path)).json() for path in ("/v1/sessions", "/v1/sessions/search?q=diary")]
        own = (await other_person.post("/v1/sessions", json={"name": "diary"})).json()
        after = await entries_when_idle(owner, session)
    assert [code(answer) for answer in tried] == [(404, "not_found")] * len(tried)
    assert lists == [{"sessions": []}, {"found": []}]
    assert own["id"] != session
    assert after == before


async def test_a_read_key_cannot_write_and_a_request_without_a_key_is_refused(tmp_path: Path) -> None:
    async with (
        serving_home(tmp_path, ScriptedModel(says("hi"))) as (_, url),
        client(url) as owner,
        client(url, "owner", "read") as reader,
        client(url, "") as nobody,
    ):
        session = await create(owner)
        read = [
            await reader.get(path)
            for path in ("/v1/sessions", f"/v1/sessions/{session}", "/v1/questions", "/v1/tasks", "/metrics")
        ]
        written = [
            await reader.post("/v1/sessions"),
            await reader.post(f"/v1/sessions/{session}/inputs", json={"text": "hi"}),
            await reader.post(f"/v1/sessions/{session}/stop"),
            await reader.delete(f"/v1/sessions/{session}"),
        ]
        refused = [await nobody.get("/v1/sessions"), await nobody.get("/metrics")]
    assert [answer.status_code for answer in read] == [200] * 5
    assert [code(answer) for answer in written] == [(403, "missing_scope")] * 4
    assert [code(answer) for answer in refused] == [(401, "no_key")] * 2


async def test_a_turn_is_stopped_and_a_second_stop_finds_nothing(tmp_path: Path) -> None:
    hold = stalls("well")
    async with serving_home(tmp_path, ScriptedModel(hold, says("never said"))) as (_, url), client(url) as owner:
        session = await create(owner)
        await owner.post(f"/v1/sessions/{session}/inputs", json={"text": "think"})
        with anyio.fail_after(60):
            await hold.reached.wait()
        stops = [(await owner.post(f"/v1/sessions/{session}/stop")).json() for _ in range(2)]
        last = (await entries_when_idle(owner, session))[-1]
    assert stops == [{"stopped": True}, {"stopped": False}]
    assert (last["type"], last["outcome"], last["partial"]) == ("ended", "interrupted", "well")


@pytest.mark.parametrize(
    ("method", "path", "content", "expected"),
    [
        ("POST", "/v1/sessions", b"{", (400, "invalid_body")),
        ("POST", "/v1/sessions", b'{"name": 3}', (400, "invalid_body")),
        ("POST", "/v1/sessions", b'{"name": "\xff"}', (400, "invalid_body")),
        ("POST", "/v1/sessions", b'{"name": " spaced "}', (400, "refused")),
        ("POST", "/v1/sessions/{id}/inputs", b"{}", (400, "refused")),
        ("POST", "/v1/sessions/{id}/inputs", b'{"text": "\\ud800"}', (400, "invalid_body")),
        ("GET", "/v1/sessions?limit=0", b"", (400, "invalid_query")),
        ("GET", "/v1/sessions?limit=1001", b"", (400, "invalid_query")),
        ("GET", "/v1/sessions/search", b"", (400, "invalid_query")),
        ("GET", "/v1/sessions/{id}/entries?after=-1", b"", (400, "invalid_query")),
        ("GET", "/v1/sessions/{id}/entries?after=7", b"", (400, "invalid_cursor")),
        ("GET", "/v1/sessions/{id}/events?after=99999999999999999999", b"", (400, "invalid_cursor")),
        ("GET", "/v1/sessions/{id}/events?until=later", b"", (400, "invalid_query")),
        ("GET", "/v1/sessions/none", b"", (404, "not_found")),
        ("GET", "/v1/nothing", b"", (404, "not_found")),
        ("GET", "/v1/sessions/", b"", (404, "not_found")),
        ("PUT", "/v1/sessions/{id}", b"", (405, "method")),
    ],
)
async def test_an_invalid_request_is_refused_with_a_reason(
    tmp_path: Path, method: str, path: str, content: bytes, expected: tuple[int, str]
) -> None:
    async with serving_home(tmp_path, ScriptedModel()) as (_, url), client(url) as owner:
        session = await create(owner)
        answer = await owner.request(method, path.format(id=session), content=content)
    assert code(answer) == expected


async def test_a_wrong_value_is_explained_in_plain_words(tmp_path: Path) -> None:
    async with serving_home(tmp_path, ScriptedModel()) as (_, url), client(url) as owner:
        answers = [await owner.get("/v1/sessions?limit=many"), await owner.post("/v1/sessions", content=b'{"name": 3}')]
    assert [answer.json()["error"]["message"] for answer in answers] == [
        "invalid query: limit must be a whole number, not a string",
        "invalid body: name must be a string, not a whole number",
    ]


@pytest.mark.promise("L12")
async def test_health_is_determined_by_trying_and_detailed_with_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving_home(tmp_path, ScriptedModel()) as (agent, url), client(url) as owner, client(url, "") as nobody:
        monkeypatch.setattr("outrider.app.health.SNAPSHOT_SECONDS", 0.0)
        brief, full = await nobody.get("/health"), (await owner.get("/health")).json()
        monkeypatch.setattr("outrider.app.health.STORE_TIMEOUT", 0.5)
        with closing(sqlite3.connect(agent.config.home / "store.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            failing, why = await nobody.get("/health"), (await owner.get("/health")).json()
        with anyio.fail_after(60):
            while (await nobody.get("/health")).status_code != 200:
                await anyio.sleep(0.1)
        await agent.drain("going down")
        resting = (await owner.get("/health")).json()
    assert (brief.status_code, brief.json()) == (200, {"status": "ok"})
    assert full | {"uptime": 0, "store": 0} == {
        "status": "ok",
        "version": "test",
        "uptime": 0,
        "store": 0,
        "is_carrying": True,
        "sessions_waiting": 0,
        "turns_running": 0,
        "tasks_open": 0,
        "webhooks_pending": 0,
        "webhooks_failed": 0,
    }
    assert all(seconds >= 0 for seconds in full["store"].values())
    assert (failing.status_code, failing.json()) == (503, {"status": "failing"})
    assert (why["problem"], why["store"]["read"]) == ("the store has not answered for 0.5 s", None)
    assert why["store"]["well"] > 0.5
    assert (resting["status"], resting["is_carrying"]) == ("failing", False)


@pytest.mark.promise("S5")
async def test_without_admin_only_ones_own_work_is_counted(tmp_path: Path) -> None:
    hold = stalls()
    async with (
        serving_home(tmp_path, ScriptedModel(hold, says("x"))) as (_, url),
        client(url, "ann", "chat") as ann,
        client(url, "bob", "read") as bob,
        client(url) as owner,
        client(url, "") as nobody,
    ):
        session = await create(ann)
        await ann.post(f"/v1/sessions/{session}/inputs", json={"text": "think"})
        with anyio.fail_after(60):
            await hold.reached.wait()
        health = {name: (await who.get("/health")).json() for name, who in (("ann", ann), ("bob", bob))}
        everyone, nothing = (await owner.get("/health")).json(), (await nobody.get("/health")).json()
        metrics = {name: (await who.get("/metrics")).text for name, who in (("ann", ann), ("bob", bob))}
        all_metrics = (await owner.get("/metrics")).text
        hold.release()
        await entries_when_idle(ann, session)
    brief = {"status": "ok", "version": "test", "sessions_waiting": 0, "turns_running": 0, "tasks_open": 0}
    assert health == {"ann": brief | {"sessions_waiting": 1, "turns_running": 1}, "bob": brief}
    assert (everyone["turns_running"], nothing) == (1, {"status": "ok"})
    numbers = {
        name: dict(line.split(" ") for line in text.splitlines() if not line.startswith("#"))
        for name, text in metrics.items()
    }
    zero = {"outrider_up": "1", "outrider_sessions_waiting": "0", "outrider_turns_running": "0"}
    zero |= {"outrider_tasks_open": "0"}
    assert numbers == {"ann": zero | {"outrider_sessions_waiting": "1", "outrider_turns_running": "1"}, "bob": zero}
    assert "outrider_http_requests_total" in all_metrics


async def test_metrics_count_running_work_and_responses(tmp_path: Path) -> None:
    hold = stalls()
    async with serving_home(tmp_path, ScriptedModel(hold, says("x"))) as (_, url), client(url) as owner:
        session = await create(owner)
        await owner.get("/v1/sessions/none")
        await owner.post(f"/v1/sessions/{session}/inputs", json={"text": "think"})
        with anyio.fail_after(60):
            await hold.reached.wait()
        lines = (await owner.get("/metrics")).text.splitlines()
        hold.release()
        await entries_when_idle(owner, session)
    numbers = dict(line.split(" ") for line in lines if not line.startswith("#"))
    assert {name: value for name, value in numbers.items() if "seconds" not in name} == {
        "outrider_up": "1",
        "outrider_sessions_waiting": "1",
        "outrider_turns_running": "1",
        "outrider_tasks_open": "0",
        "outrider_webhooks_pending": "0",
        "outrider_webhooks_failed": "0",
        'outrider_http_requests_total{status="201"}': "1",
        'outrider_http_requests_total{status="202"}': "1",
        'outrider_http_requests_total{status="404"}': "1",
    }


def methods_of(endpoints: Sequence[Endpoint]) -> set[tuple[str, str]]:
    return {(one.method, one.path.replace(":path}", "}")) for one in endpoints}


async def test_the_openapi_document_has_every_endpoint_and_nothing_else(tmp_path: Path) -> None:
    async with (
        outrider.open(tmp_path / "home", model=ScriptedModel()) as agent,
        serving(agent, app.ENDPOINTS) as url,
        client(url) as owner,
    ):
        document = (await owner.get("/openapi.json")).json()
    documented = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert documented == methods_of(app.ENDPOINTS)
    posted = document["paths"]["/v1/sessions/{id}/inputs"]["post"]
    assert posted["requestBody"]["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/NewInput"}
    assert [(one["name"], one["in"]) for one in posted["parameters"]] == [
        ("id", "path"),
        ("Idempotency-Key", "header"),
        ("Outrider-Delivery", "header"),
    ]
    references = _references(document)
    assert references <= {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}


def test_the_docs_page_has_every_endpoint_of_ours_and_nothing_else() -> None:
    page = (ROOT / "docs" / "api.md").read_text()
    ours = methods_of((*ENDPOINTS, app.get_openapi, *admin.ENDPOINTS))
    assert set(re.findall(r"^\| `([A-Z]+) (/\S*)` \|", page, re.MULTILINE)) == ours


def _references(value: Any) -> set[str]:
    """Every `$ref` in it."""
    match value:
        case {"$ref": str(name)}:
            return {name}
        case dict() | list():
            inner: list[Any] = list(value.values()) if isinstance(value, dict) else value  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
            return set[str]().union(*(_references(one) for one in inner))
        case _:
            return set()


@pytest.mark.behaviour("B1")
async def test_a_sender_that_does_not_come_back_says_so_and_its_input_is_still_added_once(tmp_path: Path) -> None:
    async with serving_home(tmp_path, ScriptedModel(says("one"))) as (_, url), client(url) as owner:
        session = await create(owner)
        path, message = f"/v1/sessions/{session}/inputs", {"text": "go"}
        receipts = [
            await owner.post(path, json=message, headers={"Idempotency-Key": "k", "Outrider-Delivery": delivery})
            for delivery in ("none", "pull")
        ]
        refused = await owner.post(path, json=message, headers={"Outrider-Delivery": "pigeon"})
        entries = await entries_when_idle(owner, session)
    assert [receipt.json()["seq"] for receipt in receipts] == [1, 1]
    assert [entry["address"] for entry in entries if entry["type"] == "input"] == [f"request:{session}"]
    assert code(refused) == (400, "invalid_delivery")
