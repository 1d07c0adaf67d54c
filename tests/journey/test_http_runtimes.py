"""A runtime as `model` over HTTP: the real Codex then runs the session."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from outrider.channels.http.app import ENDPOINTS
from outrider.testing.scripted_model import ScriptedModel, says
from outrider.testing.scripted_server.script import script
from outrider.testing.scripted_server.server import ScriptedServer
from tests.support.codex import codex_binary, open_codex, texts
from tests.support.http import client, serving
from tests.support.openai_home import RING

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]


@asynccontextmanager
async def open_client(
    folder: Path, server: ScriptedServer, command: str = "", runtime: str = "native"
) -> AsyncGenerator[httpx2.AsyncClient]:
    """A home with a scripted native model that says `ours`, and a Codex that uses this server."""
    model = ScriptedModel(*(says("ours") for _ in range(5)))
    async with (
        open_codex(folder, server.url, model, runtime_name=runtime, codex_command=command or codex_binary()) as agent,
        serving(agent, ENDPOINTS) as url,
        client(url) as owner,
    ):
        with anyio.fail_after(90):
            yield owner


async def complete(owner: httpx2.AsyncClient, model: str, text: str = "hi", **more: Any) -> httpx2.Response:
    headers = more.pop("headers", {})
    body = {"model": model, "messages": [{"role": "user", "content": text}], **more}
    return await owner.post("/v1/chat/completions", json=body, headers=headers)


async def runtime_of(owner: httpx2.AsyncClient, session: str) -> str:
    return (await owner.get(f"/v1/sessions/{session}")).json()["runtime"]


async def test_only_usable_runtimes_are_listed(tmp_path: Path) -> None:
    with ScriptedServer(script(says("unused"))) as server:
        async with open_client(tmp_path, server) as owner:
            models = [one["id"] for one in (await owner.get("/v1/models")).json()["data"]]
            model = (await owner.get("/v1/models/codex:gpt-5.4")).json()
            missing = await owner.get("/v1/models/acp")
    assert ("codex" in models, "acp" in models) == (True, False)
    assert (model["id"], model["owned_by"]) == ("codex:gpt-5.4", "codex")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")


async def test_a_runtime_without_its_program_is_not_listed_and_is_refused_with_a_reason(tmp_path: Path) -> None:
    with ScriptedServer(script(says("unused"))) as server:
        async with open_client(tmp_path, server, str(tmp_path / "gone")) as owner:
            models = [one["id"] for one in (await owner.get("/v1/models")).json()["data"]]
            refused = await complete(owner, "codex")
            sessions = (await owner.get("/v1/sessions")).json()["sessions"]
    assert "codex" not in models
    assert (refused.status_code, "npm install -g @openai/codex" in refused.json()["error"]["message"]) == (404, True)
    assert sessions == []


@pytest.mark.behaviour("A1")
async def test_completions_by_codex_and_by_the_native_loop_share_a_session(tmp_path: Path) -> None:
    with ScriptedServer(script(says("theirs"), says("theirs again"), says("a third"))) as server:
        async with open_client(tmp_path, server) as owner:
            first = await complete(owner, "codex")
            headers = {"x-session-id": first.headers["x-session-id"]}
            stays = await complete(owner, "gpt-4o", headers=headers)
            runtimes = [await runtime_of(owner, headers["x-session-id"])]
            back = await complete(owner, "native", "and you?", headers=headers)
            runtimes.append(await runtime_of(owner, headers["x-session-id"]))
            third = await complete(owner, "codex:gpt-5.4", "once more", headers=headers)
            runtimes.append(await runtime_of(owner, headers["x-session-id"]))
        last = server.requests[-1]
    answers = [one.json() for one in (first, stays, back, third)]
    assert [one["choices"][0]["message"]["content"] for one in answers] == ["theirs", "theirs again", "ours", "a third"]
    assert [one["model"] for one in answers] == ["codex", "outrider", "outrider", "codex:gpt-5.4"]
    assert runtimes == ["codex", "native", "codex:gpt-5.4"]
    assert (last.body["model"], "and you?" in texts(last)) == ("gpt-5.4", True)


@pytest.mark.behaviour("A1")
async def test_a_response_by_codex_names_it_and_can_be_continued(tmp_path: Path) -> None:
    with ScriptedServer(script(says("theirs"), says("theirs again"))) as server:
        async with open_client(tmp_path, server) as owner:
            first = (await owner.post("/v1/responses", json={"model": "codex", "input": "hi"})).json()
            more = {"model": "codex", "input": "go on", "previous_response_id": first["id"]}
            second = (await owner.post("/v1/responses", json=more)).json()
    assert [one["model"] for one in (first, second)] == ["codex", "codex"]
    assert [one["output"][0]["content"][0]["text"] for one in (first, second)] == ["theirs", "theirs again"]


async def test_client_tools_are_refused_where_codex_runs_the_session(tmp_path: Path) -> None:
    ring = {"type": "function", **RING["function"]}
    with ScriptedServer(script(says("theirs"))) as server:
        async with open_client(tmp_path, server) as owner:
            refused = [
                await complete(owner, "codex", tools=[RING]),
                await owner.post("/v1/responses", json={"model": "codex", "input": "hi", "tools": [ring]}),
            ]
            sessions = (await owner.get("/v1/sessions")).json()["sessions"]
            begun = (await owner.post("/v1/sessions", json={"name": "s", "model": "codex"})).json()
            refused.append(await complete(owner, "outrider", tools=[RING], headers={"x-session-id": begun["id"]}))
            taken = await complete(owner, "native", tools=[RING], headers={"x-session-id": begun["id"]})
    assert [(one.status_code, one.json()["error"]["code"]) for one in refused] == [(400, "tools_not_used")] * 3
    assert "codex cannot use tools of its client" in refused[0].json()["error"]["message"]
    assert (sessions, begun["runtime"], taken.status_code) == ([], "codex", 200)
    assert len(server.requests) == 0


async def test_client_tools_are_refused_where_codex_is_the_default_and_accepted_for_a_model(
    tmp_path: Path,
) -> None:
    with ScriptedServer(script(says("unused"))) as server:
        async with open_client(tmp_path, server, runtime="codex") as owner:
            refused = await complete(owner, "outrider", tools=[RING])
            sessions = (await owner.get("/v1/sessions")).json()["sessions"]
            taken = await complete(owner, "practice", tools=[RING])
            runtime = await runtime_of(owner, taken.headers["x-session-id"])
    assert (refused.status_code, refused.json()["error"]["code"], sessions) == (400, "tools_not_used", [])
    assert (taken.status_code, runtime) == (200, "native")


async def test_a_session_is_created_with_a_runtime_and_switched_to_another(tmp_path: Path) -> None:
    with ScriptedServer(script(says("unused"))) as server:
        async with open_client(tmp_path, server) as owner:
            begun = await owner.post("/v1/sessions", json={"name": "s", "model": "codex:gpt-5.4"})
            listed = (await owner.get("/v1/sessions")).json()["sessions"]
            patched = await owner.patch("/v1/sessions/s", json={"name": "t", "model": "native"})
            same = await owner.patch("/v1/sessions/t", json={})
            wrong = [
                await owner.patch("/v1/sessions/t", json={"model": "gpt-4o"}),
                await owner.post("/v1/sessions", json={"name": "u", "model": "codex:"}),
            ]
            left = [one["name"] for one in (await owner.get("/v1/sessions")).json()["sessions"]]
    assert (begun.status_code, begun.json()["runtime"]) == (201, "codex:gpt-5.4")
    assert listed == [begun.json()]
    assert (patched.json()["name"], patched.json()["runtime"]) == ("t", "native")
    assert (same.status_code, same.json()) == (200, patched.json())
    assert [(one.status_code, one.json()["error"]["code"]) for one in wrong] == [(404, "model_not_found")] * 2
    assert left == ["t"]
