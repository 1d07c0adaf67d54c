"""Session names are exact: a name never selects another session by accident."""

import json
from pathlib import Path
from urllib.parse import quote

import pytest

import outrider
from outrider.channels.http.app import ENDPOINTS
from outrider.core.errors import Refused
from outrider.testing.scripted_model import ScriptedModel, says
from tests.support.http import client, serving
from tests.support.in_process import InProcessPerson as Person

pytestmark = pytest.mark.anyio


@pytest.fixture
def person(tmp_path: Path) -> Person:
    return Person(tmp_path)


@pytest.mark.parametrize("length", [1, 6, 31])
async def test_a_name_that_is_the_prefix_of_an_id_names_a_new_session(tmp_path: Path, length: int) -> None:
    async with outrider.open(tmp_path / "home", model=ScriptedModel(says("one"), says("two"))) as agent:
        first = await agent.say("hi", session="garden")
        second = await agent.say("hi", session=first.session[:length])
        names = {session.id: session.name for session in await agent.sessions()}
    assert names == {first.session: "garden", second.session: first.session[:length]}


async def test_over_http_only_a_whole_name_or_id_finds_a_session(tmp_path: Path) -> None:
    model = ScriptedModel(says("one"))
    async with (
        outrider.open(tmp_path / "home", model=model) as agent,
        serving(agent, ENDPOINTS) as url,
        client(url) as owner,
    ):
        garden = (await owner.post("/v1/sessions", json={"name": "garden"})).json()
        part = garden["id"][:8]
        lookups = [await owner.get(f"/v1/sessions/{part}"), await owner.delete(f"/v1/sessions/{part}")]
        posted = await owner.post(f"/v1/sessions/{part}/inputs", json={"text": "hi"})
        made = await owner.post("/v1/sessions", json={"name": part})
        asked = await owner.post(
            "/v1/chat/completions",
            json={"model": "outrider", "messages": [{"role": "user", "content": "hi"}]},
            headers={"X-Session-Id": part[:7]},
        )
        names = [session.name for session in await agent.sessions()]
        unchanged = (await owner.get("/v1/sessions/garden")).json()
    assert [answer.status_code for answer in (*lookups, posted)] == [404, 404, 404]
    assert (made.status_code, made.json()["name"], asked.status_code) == (201, part, 200)
    assert sorted(names) == sorted([part, part[:7], "garden"])
    assert unchanged == garden


@pytest.mark.parametrize("name", ["feature/login", "a/entries", "50%2F50", "a b/ü?#"])
async def test_a_session_with_any_name_is_reached_over_http(tmp_path: Path, name: str) -> None:
    async with (
        outrider.open(tmp_path / "home", model=ScriptedModel()) as agent,
        serving(agent, ENDPOINTS) as url,
        client(url) as owner,
    ):
        made = (await owner.post("/v1/sessions", json={"name": name})).json()
        path = f"/v1/sessions/{quote(name, safe='')}"
        shown, entries = await owner.get(path), await owner.get(f"{path}/entries")
        stopped, deleted = await owner.post(f"{path}/stop"), await owner.delete(path)
    assert (shown.json(), entries.json()) == (made, {"entries": [], "head": 0})
    assert (stopped.json(), deleted.status_code) == ({"stopped": False}, 204)


@pytest.mark.parametrize("name", ["search", ".", ".."])
async def test_a_reserved_path_segment_is_not_a_session_name(tmp_path: Path, name: str) -> None:
    async with outrider.open(tmp_path / "home", model=ScriptedModel()) as agent:
        with pytest.raises(Refused, match="a session cannot be named"):
            await agent.session(name)
        garden = await agent.session("garden")
        with pytest.raises(Refused, match="a session cannot be named"):
            await agent.rename(garden, name)
        assert [session.name for session in await agent.sessions()] == ["garden"]


async def test_a_misspelt_field_creates_no_session(tmp_path: Path) -> None:
    async with (
        outrider.open(tmp_path / "home", model=ScriptedModel()) as agent,
        serving(agent, ENDPOINTS) as url,
        client(url) as owner,
    ):
        refused = await owner.post("/v1/sessions", json={"nam": "garden"})
        assert not await agent.sessions()
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_body")
    assert refused.json()["error"]["message"] == "invalid body: there is no field nam"


def test_commands_find_a_session_by_six_characters_of_its_id(person: Person) -> None:
    person.types("run", "-s", "garden", "hello")
    (garden,) = json.loads(person.types("sessions", "list", "--json").out)
    assert person.types("sessions", "show", garden["id"][:6]).code == 0
    assert person.types("sessions", "delete", "--yes", garden["id"][:5]).code == 2
    person.types("run", "-s", garden["id"][:6], "hello")
    listed = json.loads(person.types("sessions", "list", "--json").out)
    assert [session["name"] for session in listed] == [garden["id"][:6], "garden"]
