"""Middleware of the HTTP channel: host and origin checks, and authentication."""

import logging
from collections.abc import AsyncGenerator
from pathlib import Path

import httpx2
import pytest

import outrider
from outrider.channels.http.app import build_app
from outrider.channels.http.endpoints import HttpContext
from outrider.channels.http.middleware import AccessPolicy, build_middleware, key_store, middleware_for
from outrider.channels.http.rate_limits import RequestLimits
from outrider.core.errors import Refused, Unavailable
from outrider.core.store_port import Key, KeySpec, KeyStore, Person
from outrider.store.keys import ensure_key
from outrider.testing.scripted_model import ScriptedModel
from tests.support.gate import BASE_URL, Gate, error_of, take, who
from tests.support.http import serving_app

pytestmark = pytest.mark.anyio


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncGenerator[outrider.Agent]:
    async with outrider.open(tmp_path / "home", model=ScriptedModel(), workspace=tmp_path) as home:
        yield home


@pytest.fixture
def gate(agent: outrider.Agent) -> Gate:
    return Gate(agent)


async def test_a_key_determines_person_and_scopes(gate: Gate) -> None:
    key = await gate.key()
    async with gate.client(key) as client:
        answer = await client.get("/who")
    assert (answer.status_code, answer.json()) == (200, ["ann", key.split("_")[1], ["chat", "read"]])


async def test_without_a_valid_key_every_request_is_401(gate: Gate) -> None:
    key = await gate.key()
    wrong = key[:-1] + ("0" if key[-1] != "0" else "1")
    tries = [
        "",
        f"Bearer {wrong}",
        f"Bearer ork_aaaaaaaa_{key[-64:]}",
        f"Basic {key}",
        key,
        "Bearer",
        "Bearer  ",
        "Bearer é",
    ]
    async with gate.client() as client:
        for header in tries:
            headers = {b"authorization": header.encode()} if header else {}
            answer = await client.get("/who", headers=headers)
            assert error_of(answer) == (401, "invalid_api_key" if header else "no_key"), header
            assert (answer.headers["www-authenticate"], answer.json()["error"]["type"]) == (
                "Bearer",
                "authentication_error",
            )
            assert key[-64:] not in answer.text
        both = [("authorization", f"Bearer {key}"), ("authorization", f"Bearer {key}")]
        assert error_of(await client.get("/who", headers=both)) == (401, "invalid_api_key")
        # Without a key, a missing page is not distinguishable.
        assert error_of(await client.get("/nowhere")) == (401, "no_key")
        assert (await client.get("/who", headers={"authorization": f"bEaReR  {key}"})).status_code == 200


async def test_a_revoked_key_is_refused_from_the_next_request_on(gate: Gate) -> None:
    key = await gate.key()
    async with gate.client(key) as client:
        assert (await client.get("/who")).status_code == 200
        await gate.keys.revoke_key(key.split("_")[1])
        assert error_of(await client.get("/who")) == (401, "invalid_api_key")


@pytest.mark.parametrize("chosen", ["short", "schlüssel", "a-rather-long-key-that-nobody-will-ever-guess"])
async def test_the_key_in_the_environment_has_every_scope(agent: outrider.Agent, chosen: str) -> None:
    gate = Gate(agent, chosen)
    async with gate.client() as client:
        answer = await client.get("/who", headers={b"authorization": f"Bearer {chosen}".encode()})
        assert answer.json() == ["owner", "environment", ["admin"]]
        assert error_of(await client.get("/who", headers={b"authorization": f"Bearer {chosen}x".encode()}))[0] == 401
        assert error_of(await client.get("/who", headers={"authorization": "Bearer "})) == (401, "invalid_api_key")


@pytest.mark.promise("S2")
async def test_a_key_in_a_url_is_refused_and_not_repeated(gate: Gate) -> None:
    key = await gate.key()
    async with gate.client(key) as client:
        for path in (
            f"/who?key={key}",
            "/who?api_key=x",
            "/who?%6bey=x",
            f"/who?session={key}",
            f"/{key}",
            "/who?token=",
        ):
            answer = await client.get(path)
            assert error_of(answer) == (400, "key_in_url"), path
            assert key not in answer.text
        assert (await client.get("/who?keys=x&session=ork_garden")).status_code == 200


async def test_health_needs_no_key(gate: Gate) -> None:
    async with gate.client() as client:
        assert (await client.get("/health")).text == "ok"
        assert error_of(await client.get("/health", headers={"authorization": "Bearer x"})) == (401, "invalid_api_key")
        assert error_of(await client.get("/health/")) == (401, "no_key")
        answer = await client.get("/health", headers={"authorization": f"Bearer {await gate.key()}"})
        assert answer.text == "authenticated"


async def test_wrong_keys_from_one_address_are_rate_limited_and_right_ones_are_not(agent: outrider.Agent) -> None:
    gate = Gate(agent, "short", RequestLimits(failures=3))
    key = await gate.key()
    wrong = {"authorization": "Bearer wrong"}
    async with gate.client(key) as client, gate.client(key, peer="10.0.0.2") as other:
        codes = [error_of(await client.get("/who", headers=wrong)) for _ in range(5)]
        assert codes == [(401, "invalid_api_key")] * 3 + [(429, "too_many_failures")] * 2
        assert (await client.get("/who", headers=wrong)).headers["retry-after"] == "20"
        assert (await client.get("/who")).status_code == 200
        # A key that a person chose may be guessed, so it is not tried.
        assert error_of(await client.get("/who", headers={"authorization": "Bearer short"}))[0] == 429
        assert (await other.get("/who", headers={"authorization": "Bearer short"})).status_code == 200
        gate.now += 20
        assert (await client.get("/who", headers={"authorization": "Bearer short"})).status_code == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8642", 200),
        ("localhost", 200),
        ("LOCALHOST:1", 200),
        ("[::1]:8642", 200),
        ("agent.example.org", 200),
        ("evil.example.org", 403),
        ("localhost.evil.example.org", 403),
        ("127.0.0.1.nip.example", 403),
        ("localhost:80:80", 400),
        ("user@localhost", 400),
        ("[::1", 400),
        ("", 400),
    ],
)
@pytest.mark.promise("S3")
async def test_a_request_for_another_host_is_refused(gate: Gate, host: str, status: int) -> None:
    async with gate.client(await gate.key()) as client:
        answer = await client.get("/who", headers={"host": host})
        assert answer.status_code == status
        assert status == 200 or error_of(answer)[1] == "bad_host"


@pytest.mark.parametrize(
    ("origin", "host", "status"),
    [
        (BASE_URL, "127.0.0.1:8642", 200),
        ("https://agent.example.org", "agent.example.org", 200),
        ("http://agent.example.org:80", "agent.example.org", 200),
        ("http://localhost:8642", "127.0.0.1:8642", 403),
        ("http://127.0.0.1:3000", "127.0.0.1:8642", 403),
        ("http://127.0.0.1", "127.0.0.1:8642", 403),
        ("https://evil.example.org", "127.0.0.1:8642", 403),
        ("http://127.0.0.1:8642@evil.example.org", "127.0.0.1:8642", 403),
        ("null", "127.0.0.1:8642", 403),
        ("file://127.0.0.1:8642", "127.0.0.1:8642", 403),
        ("http://[oops", "127.0.0.1:8642", 403),
        ("", "127.0.0.1:8642", 403),
    ],
)
@pytest.mark.promise("S3")
async def test_a_page_of_another_site_is_refused(gate: Gate, origin: str, host: str, status: int) -> None:
    async with gate.client(await gate.key()) as client:
        answer = await client.get("/who", headers={"origin": origin, "host": host})
        assert answer.status_code == status
        assert status == 200 or error_of(answer)[1] == "bad_origin"


@pytest.mark.promise("S3")
async def test_cors_is_never_granted(gate: Gate) -> None:
    asked = {"origin": "https://evil.example.org", "access-control-request-method": "POST"}
    async with gate.client(await gate.key()) as client:
        answers = [await client.options("/who", headers=asked), await client.options("/nowhere")]
        assert [error_of(answer) for answer in answers] == [(405, "method")] * 2
        answers += [await client.get("/who", headers={"origin": BASE_URL}), await client.get("/health")]
    assert [name for answer in answers for name in answer.headers if name.startswith("access-control")] == []


@pytest.mark.promise("S5")
async def test_another_persons_sessions_are_not_listed(gate: Gate) -> None:
    await gate.agent.for_person("ann").session("garden")
    await gate.agent.for_person("bob").session("secret plans")
    seen: list[str] = []
    for person in ("ann", "bob", "eve"):
        async with gate.client(await gate.key(person, person)) as client:
            seen.append((await client.get("/sessions")).text)
    assert seen == ["garden", "secret plans", ""]


async def test_the_last_use_of_a_key_is_recorded_to_the_minute(gate: Gate) -> None:
    key = await gate.key()
    async with gate.client(key) as client:
        gate.wall = 0
        await client.get("/who")
        assert [each.used for each in await gate.keys.list_keys()] == [0]
        gate.wall = 60_000
        await client.get("/who")
        assert [each.used > 0 for each in await gate.keys.list_keys()] == [True]


class Broken:
    """A store that fails."""

    def __init__(self, keys: KeyStore, *, finds: bool) -> None:
        self._keys, self._finds = keys, finds

    async def find_key(self, id: str) -> Key | None:
        if not self._finds:
            raise Unavailable("the disk with /home/ann/.outrider is full")
        return await self._keys.find_key(id)

    async def touch_key(self, id: str) -> None:
        raise Refused("/home/ann/.outrider cannot be written to")

    async def create_key(self, id: str, spec: KeySpec, digest: bytes) -> Key:
        raise AssertionError

    async def list_keys(self) -> list[Key]:
        raise AssertionError

    async def revoke_key(self, id: str) -> bool:
        raise AssertionError

    async def spent(self, id: str, since: int = 0) -> float:
        raise AssertionError

    async def people(self) -> list[Person]:
        raise AssertionError


@pytest.mark.parametrize("finds", [True, False])
async def test_a_failing_store_refuses_no_valid_key_because_of_a_write(gate: Gate, finds: bool) -> None:
    key = await gate.key()
    broken = AccessPolicy(Broken(gate.keys, finds=finds))
    gate.app = build_app(HttpContext(gate.agent, "test"), [who], build_middleware(broken))
    async with gate.client(key) as client:
        answer = await client.get("/who")
    assert answer.status_code == (200 if finds else 503)
    assert (finds or answer.headers["retry-after"] == "5", "/home/ann" in answer.text) == (True, False)


@pytest.mark.promise("S2")
async def test_a_key_is_in_no_log_no_error_and_no_file_but_its_own(
    agent: outrider.Agent, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    first = await ensure_key(tmp_path / "home", key_store(agent))
    assert first
    app = build_app(HttpContext(agent, "test"), [take, who], middleware_for(agent))
    async with serving_app(app) as url, httpx2.AsyncClient(base_url=url, trust_env=False) as client:
        headers = {"authorization": f"Bearer {first}"}
        answers = [
            await client.get("/who", headers=headers),
            await client.post("/take", content=b"[" * 100_000, headers=headers),
            await client.get(f"/who?key={first}"),
            await client.get("/nowhere", headers=headers),
            await client.get("/who", headers={"authorization": f"Basic {first}"}),
        ]
    assert [answer.status_code for answer in answers] == [200, 400, 400, 404, 401]
    secret = first.rpartition("_")[2]
    ours = [record for record in caplog.records if record.name.startswith(("outrider", "uvicorn"))]
    assert [record for record in ours if secret in f"{record.getMessage()} {record.__dict__}"] == []
    assert [answer for answer in answers if secret in f"{answer.text} {answer.headers}"] == []
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path.name for path in files if secret.encode() in path.read_bytes()] == ["api_key"]
