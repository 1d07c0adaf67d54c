"""Hostile requests to a real `outrider up`: nothing is disclosed, nothing is done, and it keeps serving."""

import json
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support.in_process import InProcessPerson as Person
from tests.support.raw import CLOSE, Wire, head
from tests.support.up import Running, begin, caller, following, say, up

pytestmark = pytest.mark.needs("sandbox")
"""The task that others must not reach is a command."""

WORDS = "the owner's own words"
SHARED = {"models"}
"""Endpoints that are the same for everyone."""
RULED = {"config", "keys", "people", "webhooks"}
"""Endpoints that need the scope `admin`."""


_BODY: dict[str, Any] = {"name": "mine", "answer": "yes", "text": "hello", "input": "hello", "messages": []}


class Stage:
    """A server with keys of its owner and of another person, and a revoked key."""

    def __init__(self, folder: Path, running: Running, keys: dict[str, str]) -> None:
        self.folder, self.running, self.keys = folder, running, keys
        self._fields: dict[tuple[str, str], set[str] | None] = {}
        with caller(running.url, keys["owner"]) as owner:
            self.session = begin(owner, "private")
            assert say(owner, self.session, f"run sleep 600 in the background; {WORDS}").status_code == 202
            with following(owner, self.session, until="idle") as events:
                assert [event["type"] for event in events][-1] == "idle"
            self.task: str = owner.get("/v1/tasks").json()["tasks"][0]["id"]
            self.response: str = owner.post("/v1/responses", json={"input": WORDS}).json()["id"]
            self.document: dict[str, Any] = owner.get("/openapi.json").json()

    def operations(self) -> Iterator[tuple[str, str, str]]:
        """Every method and path with the owner's ids, and what kind of resource each names."""
        ids = {"sessions": self.session, "tasks": self.task, "responses": self.response, "models": "outrider"}
        for path, methods in self.document["paths"].items():
            kind = [*path.split("/"), "", ""][2]
            filled = path.replace("{id}", ids.get(kind, "some")).replace("{question}", "some")
            assert "{" not in filled, f"fill in what {path} names"
            for method in methods:
                self._fields[method.upper(), filled] = self._fields_of(methods[method])
                yield method.upper(), filled, kind if "{" in path else ""

    def ask(self, client: httpx2.Client, method: str, path: str, **more: Any) -> httpx2.Response:
        """Send a request with a body that has every field the endpoint accepts."""
        fields = self._fields.get((method, path))
        body = {name: value for name, value in _BODY.items() if fields is None or name in fields}
        has_body = method in ("POST", "PATCH", "PUT")
        return client.request(method, path, **({"json": body} if has_body else {}), **more)

    def _fields_of(self, operation: dict[str, Any]) -> set[str] | None:
        """The only fields that its body may have; None when others are allowed."""
        content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
        name = str(content.get("schema", {}).get("$ref", "")).rpartition("/")[2]
        schema = self.document["components"]["schemas"].get(name, {})
        return set(schema["properties"]) if schema.get("additionalProperties") is False else None

    def owners(self) -> list[Any]:
        """The owner's sessions, tasks and keys."""
        with caller(self.running.url, self.keys["owner"]) as owner:
            paths = (f"/v1/sessions/{self.session}/entries", f"/v1/tasks/{self.task}", f"/v1/responses/{self.response}")
            return [owner.get(path).json() for path in paths]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Generator[Stage]:
    folder = tmp_path_factory.mktemp("stage")
    person = Person(folder)
    person.environ["OUTRIDER_MODEL"] = "practice"

    def create(name: str, *more: str) -> str:
        return person.types("key", "create", name, *more).out.strip()

    quick = ("--rate", "1000000")
    keys = {
        "owner": create("owner", "--scope", "admin", *quick),
        "other": create("other", "--person", "other", "--scope", "chat", "--scope", "approve", *quick),
        "revoked": create("revoked", "--scope", "admin"),
    }
    assert person.types("key", "revoke", "revoked").code == 0
    with up(person) as running:
        stage = Stage(person.home, running, keys)
        yield stage
        with caller(running.url, keys["owner"]) as owner:
            assert owner.post(f"/v1/tasks/{stage.task}/kill").json()["state"] == "killed"
            health = owner.get("/health").json()
            assert (health["status"], health.get("problem", "")) == ("ok", "")


@pytest.mark.promise("L7")
@pytest.mark.parametrize("which", ["", "revoked", "made up", "cut short"])
def test_without_a_valid_key_no_endpoint_shows_or_does_anything(stage: Stage, which: str) -> None:
    owner = stage.keys["owner"]
    key = {"made up": owner[:-4] + "AAAA", "cut short": owner[:-1]}.get(which) or stage.keys.get(which, "")
    before = stage.owners()
    with caller(stage.running.url, key) as stranger:
        for method, path, _ in stage.operations():
            answer = stage.ask(stranger, method, path)
            if path == "/health" and not key:
                assert answer.json() == {"status": "ok"}
                continue
            # Too many wrong keys from one address get 429.
            assert answer.status_code in ((401,) if not key else (401, 429)), (method, path, answer.text)
            assert WORDS not in answer.text
    assert stage.owners() == before


@pytest.mark.promise("L7")
def test_another_persons_resources_are_404_on_every_endpoint_with_an_id(stage: Stage) -> None:
    before = stage.owners()
    with caller(stage.running.url, stage.keys["other"]) as other:
        for method, path, kind in stage.operations():
            if kind in SHARED or not kind:
                continue
            answer = stage.ask(other, method, path)
            assert kind in RULED | {"sessions", "tasks", "responses"}, f"say whose {kind} are"
            assert answer.status_code in ((403, 404) if kind in RULED else (404,)), (method, path, answer.text)
            assert WORDS not in answer.text
        for method, path, _ in stage.operations():
            if method == "GET" and "/openapi.json" not in path:
                text = other.get(path).text
                assert not [one for one in (WORDS, stage.session, stage.task) if one in text and one not in path], path
        again = {"previous_response_id": stage.response, "input": "go on"}
        assert other.post("/v1/responses", json=again).status_code == 404
        assert other.get("/v1/tasks", params={"session": stage.session}).status_code == 404
        assert other.get("/v1/sessions/search", params={"q": "owner"}).json() == {"found": []}
        messages = [{"role": "user", "content": "what was said here?"}]
        for header in ("x-session-id", "x-outrider-session-id"):
            asked = other.post("/v1/chat/completions", json={"messages": messages}, headers={header: stage.session})
            assert WORDS not in asked.text
    assert stage.owners() == before


@pytest.mark.promise("L7")
@pytest.mark.parametrize(
    ("headers", "statuses"),
    [
        ({"host": "rebound.example"}, {403}),
        ({"host": "127.0.0.1.example:80"}, {403}),
        ({"host": "user@127.0.0.1"}, {400}),
        ({"host": ""}, {400}),
        ({"origin": "https://elsewhere.example"}, {403}),
        ({"origin": "http://localhost:3000"}, {403}),
        ({"origin": "null"}, {403}),
        ({"origin": ""}, {403}),
    ],
    ids=lambda value: str(value),
)
def test_requests_of_other_sites_pages_are_refused_on_every_endpoint(
    stage: Stage, headers: dict[str, str], statuses: set[int]
) -> None:
    with caller(stage.running.url, stage.keys["owner"]) as owner:
        for method, path, _ in stage.operations():
            answer = stage.ask(owner, method, path, headers=headers)
            assert answer.status_code in statuses, (method, path, answer.text)


@pytest.mark.promise("L7")
def test_cors_is_never_granted_and_a_key_in_a_url_is_refused(stage: Stage) -> None:
    key = stage.keys["owner"]
    origin = {"origin": "https://elsewhere.example", "access-control-request-method": "POST"}
    with caller(stage.running.url, "") as page, caller(stage.running.url, key) as owner:
        for method, path, _ in stage.operations():
            asked = page.request("OPTIONS", path, headers=origin)
            answers = [
                asked,
                stage.ask(owner, method, path, params={"api_key": key}),
                stage.ask(page, method, f"{path}/{key}"),
            ]
            assert [answer.status_code for answer in answers] == [405, 400, 400], path
            for answer in answers:
                assert not [name for name in answer.headers if name.startswith("access-control")]
                assert key not in answer.text
    assert key not in (stage.folder / "logs" / "outrider.log").read_text()


@pytest.mark.promise("L7")
def test_revoking_a_key_cuts_its_streams_and_no_others(stage: Stage) -> None:
    path = f"/v1/sessions/{stage.session}/events"
    with caller(stage.running.url, stage.keys["owner"]) as owner, Wire(stage.running.port) as open_wire:
        made = owner.post("/v1/keys", json={"name": "lent", "scopes": ["read"]}).json()
        open_wire.sends(head(path, key=stage.keys["owner"], method="GET"))
        with Wire(stage.running.port) as cut, caller(stage.running.url, made["key"]) as client:
            cut.sends(head(path, key=made["key"], method="GET"))
            assert WORDS.encode() in cut.hears(WORDS.encode())
            assert owner.delete(f"/v1/keys/{made['id']}").status_code == 204
            assert client.get(path).status_code in (401, 429)  # many wrong keys came from here
            assert not cut.hears().endswith(b"0\r\n\r\n")  # cut, not ended properly
        received = open_wire.hears(WORDS.encode())
        assert say(owner, stage.session, "something new").status_code == 202
        assert b"something new" in received + open_wire.hears(b"something new")


CHUNKED = "transfer-encoding: chunked"
HIDDEN = "0\r\n\r\n" + head("/v1/sessions", "content-length: 17", key="KEY").decode() + '{"name":"hidden"}'


@pytest.mark.promise("L7")
@pytest.mark.parametrize(
    ("lines", "body", "status"),
    [
        (["content-length: 4", CHUNKED], HIDDEN, 400),
        ([CHUNKED, "content-length: 4"], HIDDEN, 400),
        ([CHUNKED, "transfer-encoding: identity"], HIDDEN, 400),
        (["transfer-encoding: xchunked"], HIDDEN, 501),
        (["transfer-encoding: gzip, chunked"], HIDDEN, 501),
        (["transfer-encoding : chunked"], HIDDEN, 400),
        (["transfer-encoding:\x0bchunked"], HIDDEN, 400),
        (["content-length: 2", "content-length: 3"], "{}", 400),
        (["content-length: 2", "content-length: 2"], "{}", 400),
        (["content-length: 2, 2"], "{}", 400),
        (["content-length: +2"], "{}", 400),
        (["content-length: -2"], "{}", 400),
        (["content-length: 0x2"], "{}", 400),
        (["content-length: 9" + "9" * 40], "{}", 400),
        (["content-length: 99999999999"], "{}", 413),
        (["content-length: 99999999999", "expect: 100-continue"], "", 413),
        (["content-length: 1"], '{"name":"hidden"}', 400),
        ([CHUNKED], "fffffffffffffffff\r\n{}", 400),
        ([CHUNKED], "-2\r\n{}\r\n0\r\n\r\n", 400),
        ([CHUNKED], "2\n{}\n0\n\n", 400),
        (["host: elsewhere.example", "content-length: 2"], "{}", 400),
        (["x: a\r\n folded", "content-length: 2"], "{}", 400),
        (["x: a\nauthorization: b", "content-length: 2"], "{}", 400),
        (["x: a\0b", "content-length: 2"], "{}", 400),
        (["x y: b", "content-length: 2"], "{}", 400),
        ([f"x-{n}: y" for n in range(200)], "", 431),
        ([f"x-{n}: y" for n in range(100_000)], "", 431),
        (["x: " + "y" * 1_000_000], "", 431),
    ],
    ids=lambda value: str(value)[:50],
)
def test_an_ambiguous_or_unbounded_request_is_refused_and_smuggles_no_other(
    stage: Stage, lines: list[str], body: str, status: int
) -> None:
    with Wire(stage.running.port) as wire:
        wire.sends(head("/v1/sessions", CLOSE, *lines, key=stage.keys["owner"]))
        wire.sends(body.replace("KEY", stage.keys["owner"]).encode())
        assert wire.status() == status
    assert "hidden" not in names(stage)


def names(stage: Stage) -> list[str]:
    with caller(stage.running.url, stage.keys["owner"]) as owner:
        return [one["name"] for one in owner.get("/v1/sessions").json()["sessions"]]


@pytest.mark.promise("L7")
@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("/v1/../metrics", 404),
        ("/v1/%2e%2e/metrics", 404),
        ("/v1/sessions/../../metrics", 404),
        ("/v1/sessions/%2e%2e%2f%2e%2e%2fmetrics", 404),
        ("/v1/tasks/..%2f..%2fapi_key/output", 404),
        ("/v1/sessions/%00", 404),
        ("/v1/sessions/%ff", 404),
        ("/v1/sessions/\0", 400),
        ("/v1/sessions/\xff", 400),
        ("//metrics", 404),
        ("/metrics/", 404),
        ("/metrics%3f", 404),
        ("http://elsewhere.example/metrics", 400),
        ("http://127.0.0.1/metrics", 200),
        ("metrics", 400),
        ("/" + "x" * 100_000, 431),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_path_has_one_meaning(stage: Stage, target: str, status: int) -> None:
    with Wire(stage.running.port) as wire:
        wire.sends(head(target, CLOSE, key=stage.keys["owner"], method="GET"))
        assert wire.status() == status
    with Wire(stage.running.port) as wire:
        wire.sends(head(f"/health/..{target}", CLOSE, method="GET"))
        assert wire.status() in (400, 401, 431)


@pytest.mark.promise("L7")
@pytest.mark.parametrize(
    "sent",
    [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", head("elsewhere.example:80", CLOSE, method="CONNECT")],
    ids=["HTTP/2", "CONNECT"],
)
def test_other_protocols_are_refused(stage: Stage, sent: bytes) -> None:
    with Wire(stage.running.port) as wire:
        wire.sends(sent)
        assert wire.status() == 400


@pytest.mark.promise("L7")
@pytest.mark.parametrize("protocol", ["h2c", "websocket"])
def test_an_upgrade_request_is_answered_in_http_and_the_connection_stays_usable(stage: Stage, protocol: str) -> None:
    upgrade = ("connection: upgrade", f"upgrade: {protocol}", "sec-websocket-version: 13", "sec-websocket-key: aGk=")
    with Wire(stage.running.port) as wire:
        for _ in range(2):
            wire.sends(head("/health", *upgrade, method="GET"))
            assert wire.hears(b'{"status":"ok"}').startswith(b"HTTP/1.1 200 ")


DEEP = 100_000
LISTS = "[" * DEEP + "]" * DEEP
OBJECTS = '{"a":' * DEEP + "1" + "}" * DEEP


@pytest.mark.promise("L7")
@pytest.mark.parametrize("deep", [LISTS, OBJECTS], ids=["lists", "objects"])
def test_json_of_any_depth_is_accepted_or_refused_and_breaks_nothing(stage: Stage, deep: str) -> None:
    quoted = json.dumps(deep)
    user = '{"role":"user","content":"hello"}'
    call = f'{{"id":"c","type":"function","function":{{"name":"f","arguments":{quoted}}}}}'
    tool = f'{{"type":"function","function":{{"name":"f","parameters":{{"x":{deep}}}}}}}'
    bodies = [
        ("/v1/chat/completions", f'{{"messages":[{user}],"tools":[{tool}]}}'),
        ("/v1/chat/completions", f'{{"messages":[{user},{{"role":"assistant","tool_calls":[{call}]}},{user}]}}'),
        ("/v1/chat/completions", f'{{"messages":[{{"role":"user","content":{quoted}}}]}}'),
        (
            "/v1/responses",
            f'{{"input":"hello","tools":[{{"type":"function","name":"f","parameters":{{"x":{deep}}}}}]}}',
        ),
        ("/v1/responses", f'{{"input":[{{"type":"function_call","call_id":"c","name":"f","arguments":{quoted}}}]}}'),
        ("/v1/responses", f'{{"input":[{{"type":"function_call_output","call_id":"c","output":{deep}}}]}}'),
    ]
    with caller(stage.running.url, stage.keys["owner"]) as owner:
        for method, path, _ in stage.operations():
            if method in ("POST", "PATCH", "PUT") and not path.endswith("/kill"):
                bodies += [(path, deep), (path, f'{{"some":{deep}}}')]
        for path, body in bodies:
            answer = owner.post(path, content=body.encode())
            assert answer.status_code < 500, (path, body[:80], answer.text)
        history = owner.get("/v1/sessions").json()["sessions"][0]["id"]
        assert owner.get(f"/v1/sessions/{history}/entries").status_code == 200
