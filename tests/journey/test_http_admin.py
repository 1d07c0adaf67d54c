"""Settings, people and keys over HTTP, which need the scope `admin`."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

import outrider
from outrider.channels.http.app import ENDPOINTS, build_app
from outrider.channels.http.endpoints import HttpContext
from outrider.channels.http.middleware import middleware_for
from outrider.store.keys import ensure_key, first_key_file
from outrider.testing.scripted_model import ScriptedModel, says
from tests.journey.support import Person
from tests.support.gate import error_of
from tests.support.http import serving_app
from tests.support.up import up

pytestmark = pytest.mark.anyio


class AdminHome:
    """A home behind its real middleware, and its first key."""

    def __init__(self, url: str, first: str, home: Path) -> None:
        self.url, self.first, self.home = url, first, home

    def client(self, key: str = "") -> httpx2.AsyncClient:
        headers = {"authorization": f"Bearer {key or self.first}"}
        return httpx2.AsyncClient(base_url=self.url, headers=headers, timeout=60, trust_env=False)

    async def make(self, **spec: Any) -> dict[str, Any]:
        async with self.client() as admin:
            made = await admin.post("/v1/keys", json=spec)
        assert (made.status_code, made.headers["cache-control"]) == (201, "no-store")
        return made.json()


@asynccontextmanager
async def admin_home(folder: Path) -> AsyncGenerator[AdminHome]:
    home = folder / "home"
    async with outrider.open(home, model=ScriptedModel(says("hello"))) as agent:
        first = await ensure_key(home, agent.home.store)
        async with serving_app(build_app(HttpContext(agent, "test"), ENDPOINTS, middleware_for(agent))) as url:
            yield AdminHome(url, first or "", home)


@pytest.mark.parametrize("spec", [{"name": "laptop", "scope": ["read"]}, {"name": "laptop", "spent": "1/day"}])
async def test_a_misspelt_field_creates_no_key(tmp_path: Path, spec: dict[str, Any]) -> None:
    async with admin_home(tmp_path) as there, there.client() as admin:
        refused = await admin.post("/v1/keys", json=spec)
        keys = (await admin.get("/v1/keys")).json()["keys"]
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (400, "invalid_body")
    assert error["message"] == f"invalid body: there is no field {list(spec)[1]}"
    assert len(keys) == 1


async def test_a_key_is_created_shown_once_used_listed_and_revoked(tmp_path: Path) -> None:
    async with admin_home(tmp_path) as there, there.client() as admin:
        made = await there.make(name="laptop", person="anna", scopes=["chat", "chat"], rate=60, spend="$5/day")
        key = made.pop("key")
        async with there.client(key) as anna:
            assert (await anna.get("/v1/sessions")).json() == {"sessions": []}
            keys = (await admin.get("/v1/keys")).json()["keys"]
            again = await admin.post("/v1/keys", json={"name": "laptop"})
            gone = await admin.delete(f"/v1/keys/{made['id']}")
            refused = await anna.get("/v1/sessions")
        twice = await admin.delete(f"/v1/keys/{made['id']}")
        free = await admin.post("/v1/keys", json={"name": "laptop"})
        text = (await admin.get("/v1/keys")).text
    assert made == {
        "id": key.split("_")[1],
        "name": "laptop",
        "person": "anna",
        "scopes": ["chat"],
        "rate": 60,
        "concurrent": None,
        "spend": "5/day",
        "spent": 0.0,
        "created": made["created"],
        "used": 0,
        "revoked": 0,
    }
    assert keys == [keys[0], {**made, "used": keys[1]["used"]}]
    assert (keys[0]["name"], keys[0]["scopes"]) == ("first", ["admin"])
    assert (error_of(again), gone.status_code, error_of(refused)) == ((400, "refused"), 204, (401, "invalid_api_key"))
    assert (error_of(twice), free.status_code) == ((404, "not_found"), 201)
    assert (key.rpartition("_")[2] in text, free.json()["key"].rpartition("_")[2] in text) == (False, False)


async def test_revoking_the_first_key_removes_its_file(tmp_path: Path) -> None:
    async with admin_home(tmp_path) as there, there.client() as admin:
        assert first_key_file(there.home).exists()
        assert (await admin.delete(f"/v1/keys/{there.first.split('_')[1]}")).status_code == 204
        assert not first_key_file(there.home).exists()
        assert error_of(await admin.get("/v1/keys")) == (401, "invalid_api_key")


@pytest.mark.parametrize(
    "bad",
    [
        {},
        {"name": ""},
        {"name": "x", "scopes": []},
        {"name": "x", "scopes": ["root"]},
        {"name": "x", "rate": 0},
        {"name": "x", "spend": "5/week"},
        {"name": "x", "person": ""},
    ],
)
async def test_an_invalid_key_is_not_created(tmp_path: Path, bad: dict[str, Any]) -> None:
    async with admin_home(tmp_path) as there, there.client() as admin:
        assert (await admin.post("/v1/keys", json=bad)).status_code == 400
        assert len((await admin.get("/v1/keys")).json()["keys"]) == 1


async def test_a_key_without_the_admin_scope_is_refused(tmp_path: Path) -> None:
    async with admin_home(tmp_path) as there:
        made = await there.make(name="app")
        async with there.client(made["key"]) as app:
            answers = [
                await app.get("/v1/config"),
                await app.get("/v1/people"),
                await app.get("/v1/keys"),
                await app.post("/v1/keys", json={"name": "mine", "scopes": ["admin"]}),
                await app.delete(f"/v1/keys/{made['id']}"),
            ]
    assert [error_of(answer) for answer in answers] == [(403, "missing_scope")] * 5


async def test_a_key_for_another_person_sees_that_persons_sessions_only(tmp_path: Path) -> None:
    async with admin_home(tmp_path) as there, there.client() as admin:
        made = await there.make(name="annas", person="anna")
        async with there.client(made["key"]) as anna:
            mine = (await admin.post("/v1/sessions", json={"name": "mine"})).json()["id"]
            hers = (await anna.post("/v1/sessions", json={"name": "hers"})).json()["id"]
            seen = [(await each.get("/v1/sessions")).json()["sessions"] for each in (admin, anna)]
            tried = [await anna.get(f"/v1/sessions/{mine}"), await admin.get(f"/v1/sessions/{hers}")]
        people = (await admin.get("/v1/people")).json()["people"]
    assert [[one["id"] for one in each] for each in seen] == [[mine], [hers]]
    assert [error_of(answer) for answer in tried] == [(404, "not_found")] * 2
    assert sorted((one["name"], one["sessions"], one["keys"], one["active"] > 0) for one in people) == [
        ("anna", 1, 1, True),
        ("owner", 1, 1, True),
    ]


def test_settings_are_the_same_as_the_commands_with_secrets_masked(tmp_path: Path) -> None:
    person = Person(tmp_path)
    person.uses("http://127.0.0.1:9/v1")
    with up(person) as running, running.client() as admin:
        told_there = admin.get("/v1/config")
        over_cli = json.loads(person.types("config", "list", "--json").out)
    assert [one for one in told_there.json()["settings"] if one["name"] != "http.port"] == [
        one
        for one in over_cli
        if one["name"] != "http.port"  # the option of `up` is for it alone
    ]
    assert "k-1234567890" not in told_there.text
    (key,) = [one for one in over_cli if one["name"] == "model.key"]
    assert (key["secret"], key["source"]) == (True, "environment OUTRIDER_MODEL_KEY")
