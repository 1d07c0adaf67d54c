"""Who may answer: the owner and keys with the scope `approve`. Questions of other people go to the owner."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

import outrider
from outrider.app.agent import Agent
from outrider.channels.http import admin, questions, sessions, tasks
from outrider.channels.http.app import build_app
from outrider.channels.http.endpoints import HttpContext
from outrider.channels.http.middleware import middleware_for
from outrider.config.load import load
from outrider.core.approvals import Permission
from outrider.core.errors import Refused
from outrider.core.store_port import KeyScope, KeySpec
from outrider.store.keys import default_scopes, make_key
from outrider.testing.scripted_model import ReplySource, ScriptedModel, call, says
from tests.support.http import serving_app

pytestmark = [pytest.mark.anyio, pytest.mark.promise("S8"), pytest.mark.needs("sandbox")]
ENDPOINTS = (*sessions.ENDPOINTS, *questions.ENDPOINTS, *tasks.ENDPOINTS, *admin.ENDPOINTS)


class Keyring:
    """A served home, and clients with real keys."""

    def __init__(self, agent: Agent, url: str) -> None:
        self.agent, self._url = agent, url
        self._count = 0

    @asynccontextmanager
    async def client(self, person: str, *scopes: KeyScope) -> AsyncGenerator[httpx2.AsyncClient]:
        """Without scopes, with those that a new key has."""
        self._count += 1
        spec = KeySpec(f"key {self._count}", person, scopes or default_scopes(person))
        _, text = await make_key(self.agent.home.store, spec)
        headers = {"authorization": f"Bearer {text}"}
        async with httpx2.AsyncClient(base_url=self._url, headers=headers, timeout=60, trust_env=False) as session:
            yield session


@asynccontextmanager
async def keyring(folder: Path, *lines: ReplySource) -> AsyncGenerator[Keyring]:
    home = folder / "home"
    home.mkdir(mode=0o700)
    async with outrider.open(config=load(home, {}), model=ScriptedModel(*lines)) as agent:
        app = build_app(HttpContext(agent, "test"), ENDPOINTS, middleware_for(agent))
        async with serving_app(app) as url:
            yield Keyring(agent, url)


def needing(command: str, folder: Path) -> ReplySource:
    return says("", call("shell", command=command, needs=[f"read:{folder}"], why="to look"))


async def ask_something(member: httpx2.AsyncClient, count: int = 1) -> dict[str, Any]:
    """Post a message that leads to a question; the so-many-th question of the session `work`."""
    if count == 1:
        await member.post("/v1/sessions", json={"name": "work"})
        await member.post("/v1/sessions/work/inputs", json={"text": "go"})
    with anyio.fail_after(60):
        async with member.stream("GET", "/v1/sessions/work/events", timeout=60) as stream:
            async for line in stream.aiter_lines():
                if line.startswith('data: {"type":"asked"'):
                    count -= 1
                    if not count:
                        break
    (question,) = (await member.get("/v1/questions")).json()["questions"]
    return question


async def idle(member: httpx2.AsyncClient) -> list[dict[str, Any]]:
    with anyio.fail_after(60):
        await member.get("/v1/sessions/work/events", params={"until": "idle"}, timeout=60)
    return (await member.get("/v1/sessions/work/entries")).json()["entries"]


async def test_a_members_key_cannot_approve_and_the_owner_answers_for_it(tmp_path: Path) -> None:
    secret = tmp_path / "ssh"
    secret.mkdir()
    (secret / "id").write_text("private key")
    look = f"cat {secret}/id"
    async with (
        keyring(tmp_path, needing(look, secret), needing(look, secret), says("ok")) as home,
        home.client("anna") as member,
        home.client("bob") as stranger,
        home.client("owner") as owner,
        home.client("owner", "chat", "read") as reader,
    ):
        question = await ask_something(member)
        path = f"/v1/sessions/{question['session']}/questions/{question['id']}"
        refused = await member.post(path, json={"answer": "once"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "missing_scope")
        assert "its questions wait for the owner" in refused.json()["error"]["message"]
        assert (question["can_answer"], question["person"]) == (False, "anna")
        for client in (stranger, reader):
            assert (await client.get("/v1/questions")).json() == {"questions": []}
            assert (await client.post(path, json={"answer": "once"})).status_code == 403
        assert await home.agent.questions(await home.agent.for_person("anna").find("work"))
        (seen,) = (await owner.get("/v1/questions")).json()["questions"]
        assert seen == {**question, "can_answer": True}
        by_name = await owner.post(f"/v1/sessions/work/questions/{question['id']}", json={"answer": "session"})
        answered = await owner.post(path, json={"answer": "session"})
        entries = await idle(member)
        permissions = await home.agent.home.store.list_permissions("anna")
        owners = await home.agent.permissions()
    assert (by_name.status_code, answered.status_code) == (404, 200)
    assert [entry["person"] for entry in entries if entry["type"] == "answered"] == ["owner"]
    results = [json.loads(entry["text"])["output"] for entry in entries if entry["type"] == "result"]
    assert results == ["private key", "private key"]
    (permission,) = permissions
    expected = Permission(permission.id, "anna", "session", question["session"], f"read:{secret}", permission.created)
    assert (permission, owners) == (expected, [])


async def test_a_member_with_the_scope_answers_its_own_questions_and_no_others(tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    async with (
        keyring(tmp_path, needing("echo hi", folder), says("ok")) as home,
        home.client("anna", "chat", "read", "approve") as anna,
        home.client("bob", "chat", "approve") as bob,
    ):
        question = await ask_something(anna)
        path = f"/v1/sessions/{question['session']}/questions/{question['short_id']}"
        assert (await bob.get("/v1/questions")).json() == {"questions": []}
        codes = [(await who.post(path, json={"answer": "once"})).status_code for who in (bob, anna, anna)]
        entries = await idle(anna)
    assert (codes, question["can_answer"]) == ([404, 200, 404], True)
    assert entries[-1]["outcome"] == "done"


async def test_the_agent_itself_refuses_an_answer_of_someone_who_may_not_approve(tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    async with keyring(tmp_path, needing("echo hi", folder), says("ok")) as home, home.client("anna") as anna:
        await ask_something(anna)
        member = home.agent.for_person("anna")
        (pending,) = await member.pending_questions()
        with pytest.raises(Refused, match="only the owner"):
            await member.answer(pending.session, pending.asked, "once")
        with pytest.raises(Refused, match="only the owner"):
            await home.agent.for_person("bob", can_approve=True).answer(pending.session, pending.asked, "once")
        assert await home.agent.answer(pending.session, pending.asked, "no")
        await idle(anna)


async def test_input_to_a_task_that_holds_permissions_needs_the_scope(tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    begin = call("shell", command="cat", interactive=True, background=True, needs=[f"read:{folder}"])
    async with (
        keyring(tmp_path, says("", begin), says("started"), says("ended")) as home,
        home.client("anna") as member,
        home.client("anna", "chat", "approve") as approver,
        home.client("owner") as owner,
    ):
        question = await ask_something(member)
        path = f"/v1/sessions/{question['session']}/questions/{question['id']}"
        assert (await owner.post(path, json={"answer": "once"})).status_code == 200
        await idle(member)
        (task,) = (await member.get("/v1/tasks")).json()["tasks"]
        write = f"/v1/tasks/{task['id']}/input"
        refused = await member.post(write, json={"text": "cat /etc/passwd\n"})
        wrote = await approver.post(write, json={"text": "hello\n", "close": True})
        with anyio.fail_after(60):
            await home.agent.wait_task(await home.agent.for_person("anna").find_task(task["id"]))
        output = (await member.get(f"/v1/tasks/{task['id']}/output")).text
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "missing_scope")
    assert (wrote.status_code, output) == (200, "hello\n")


async def test_new_keys_may_approve_for_the_owner_only_and_a_member_changes_no_rules(tmp_path: Path) -> None:
    async with keyring(tmp_path, says("ok")) as home, home.client("owner", "admin") as owner:
        made = [
            (await owner.post("/v1/keys", json={"name": name, "person": person, **more})).json()["scopes"]
            for name, person, more in (
                ("a", "owner", {}),
                ("b", "anna", {}),
                ("c", "anna", {"scopes": ["chat", "approve"]}),
                ("d", "owner", {"scopes": ["read"]}),
            )
        ]
        async with home.client("anna", "chat", "read", "approve") as member:
            tried = [
                await member.get("/v1/config"),
                await member.post("/v1/keys", json={"name": "mine", "person": "anna", "scopes": ["admin"]}),
                await member.patch("/v1/config", json={"rules": []}),
            ]
    assert made == [["chat", "read", "approve"], ["chat", "read"], ["chat", "approve"], ["read"]]
    assert [answer.status_code for answer in tried] == [403, 403, 405]
