"""Clients on a network that breaks repeatedly: they resume, and get what other clients get, byte for byte.

What ran is counted by the model server's list of requests.
"""

import json
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from bench.ports import free_port
from outrider.testing.scripted_model import call, says
from outrider.testing.scripted_server.script import Stall, script
from outrider.testing.scripted_server.server import ScriptedServer
from tests.journey.support import PATIENCE, Person
from tests.support.cutting import CuttingProxy, cutting, until
from tests.support.up import begin, say, up

Frames = list[bytes]
WORDS = " ".join(f"wörd-{n}\n" if n % 7 == 0 else f"word-{n}" for n in range(120))
STEPS = (
    says("let me look", call("list"), delay=0.1),
    says("and once more", call("list", path="."), delay=0.1),
    says(WORDS, delay=0.02),
)
KEY = {"idempotency-key": "k1"}


@pytest.fixture
def person(tmp_path: Path) -> Person:
    return Person(tmp_path)


def frames_of(client: httpx2.Client, method: str, path: str, **more: Any) -> Frames:
    """The whole events received before the connection was cut or the stream ended; a partial one is dropped."""
    received = b""
    with suppress(httpx2.TransportError), client.stream(method, path, **more) as stream:
        assert stream.status_code == 200, stream.read()
        for piece in stream.iter_raw():
            received += piece
    return [frame for frame in received.split(b"\n\n")[:-1] if not frame.startswith(b":")]


def data_of(frame: bytes) -> dict[str, Any]:
    return json.loads(frame.partition(b"data: ")[2])


def through(proxy: CuttingProxy, client: httpx2.Client) -> httpx2.Client:
    """The same client, through the proxy."""
    return httpx2.Client(base_url=proxy.url, headers=client.headers, timeout=PATIENCE, trust_env=False)


@pytest.mark.promise("L8")
@pytest.mark.parametrize("seed", [1, 2])
def test_a_session_followed_over_a_broken_network_is_the_same_byte_for_byte(person: Person, seed: int) -> None:
    steps = [
        says(f"step {n}: ünïcode\nand lines", call("list", path=".", depth=n % 3 + 1), delay=0.01) for n in range(40)
    ]
    with ScriptedServer(script(*steps, says("done"))) as model:
        person.uses(model.url)
        with (
            up(person) as running,
            running.client() as client,
            cutting(running.port, seed) as line,
            through(line, client) as cut,
            ThreadPoolExecutor() as pool,
        ):
            path = f"/v1/sessions/{begin(client, 's')}"
            say(client, "s", "go")
            uncut = pool.submit(frames_of, client, "GET", f"{path}/events?until=idle")
            seen: Frames = []

            def come_back() -> bool | None:
                ids = [one.split(b"\n")[0][4:].decode() for one in seen if one.startswith(b"id: ")]
                headers = {"last-event-id": ids[-1]} if ids else {}
                seen.extend(frames_of(cut, "GET", f"{path}/events?until=idle", headers=headers))
                return (bool(seen) and data_of(seen[-1])["type"] == "idle") or None

            until(come_back)
            whole = uncut.result(PATIENCE)
        entries = [one for one in seen if one.startswith(b"id: ")]
        assert entries == [one for one in whole if one.startswith(b"id: ")]
        assert seen[-1] == whole[-1]
        assert [data_of(one)["seq"] for one in entries] == list(range(1, len(entries) + 1))
        assert (len(model.requests), line.cuts > 5) == (41, True)


@pytest.mark.promise("L8")
@pytest.mark.parametrize("is_background", [False, True])
def test_a_response_streamed_over_a_broken_network_is_the_same_byte_for_byte(
    person: Person, is_background: bool
) -> None:
    order = {"model": "outrider", "input": "go", "stream": True, "background": is_background}
    with ScriptedServer(script(*STEPS)) as model:
        person.uses(model.url)
        with (
            up(person) as running,
            running.client() as client,
            cutting(running.port) as line,
            through(line, client) as cut,
            ThreadPoolExecutor() as pool,
        ):
            seen = until(lambda: frames_of(cut, "POST", "/v1/responses", json=order, headers=KEY) or None)
            path = f"/v1/responses/{data_of(seen[0])['response']['id']}?stream=true"
            uncut = pool.submit(frames_of, client, "GET", path)

            def come_back() -> bool | None:
                seen.extend(frames_of(cut, "GET", f"{path}&starting_after={data_of(seen[-1])['sequence_number']}"))
                return data_of(seen[-1])["type"] == "response.completed" or None

            until(come_back)
            assert seen == uncut.result(PATIENCE)
            late = frames_of(client, "GET", path)
            again = frames_of(client, "POST", "/v1/responses", json=order, headers=KEY)
        assert seen == late == again
        deltas = [data_of(one)["delta"] for one in seen if data_of(one)["type"] == "response.output_text.delta"]
        assert "".join(deltas) == f"let me look\n\nand once more\n\n{WORDS}"
        assert (len(model.requests), line.cuts > 5) == (3, True)


@pytest.mark.promise("L8")
@pytest.mark.parametrize("is_background", [False, True])
def test_the_official_client_resumes_a_response_repeatedly(person: Person, is_background: bool) -> None:
    with ScriptedServer(script(*STEPS)) as model:
        person.uses(model.url)
        with up(person) as running, cutting(running.port, 3) as line, official(line.url, person) as client:
            events: list[Any] = []

            def hear(ask: Callable[[], Any]) -> None:
                with suppress(openai.APIConnectionError, httpx2.TransportError), ask() as stream:
                    for event in stream:
                        events.append(event)

            def begin_or_come_back() -> bool | None:
                if not events:
                    hear(lambda: client.responses.create(model="outrider", input="go", stream=True, **more))
                else:
                    id, number = events[0].response.id, events[-1].sequence_number
                    hear(lambda: client.responses.retrieve(id, stream=True, starting_after=number))
                return (bool(events) and events[-1].type == "response.completed") or None

            more: Any = {"background": is_background, "extra_headers": KEY}
            until(begin_or_come_back)
            with official(running.url, person) as direct:
                uncut = list(direct.responses.retrieve(events[0].response.id, stream=True))
        assert events == uncut
        assert (len(model.requests), line.cuts > 5) == (3, True)


def official(url: str, person: Person) -> openai.OpenAI:
    key = (person.home / "api_key").read_text().strip()
    return openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=PATIENCE)


CHAT = {"model": "outrider", "messages": [{"role": "user", "content": "go"}]}
ASKED = {"model": "outrider", "input": "go"}
ROUTES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", CHAT),
    "chat-stream": ("/v1/chat/completions", {**CHAT, "stream": True}),
    "response": ("/v1/responses", ASKED),
    "response-stream": ("/v1/responses", {**ASKED, "stream": True}),
    "response-background": ("/v1/responses", {**ASKED, "background": True}),
    "input": ("/v1/sessions/s/inputs", {"text": "go"}),
}


def whole(client: httpx2.Client, way: str) -> bytes | None:
    """The response to this request with its key; None when the connection was cut before its end."""
    path, order = ROUTES[way]
    try:
        answer = client.post(path, json=order, headers=KEY)
    except httpx2.TransportError:
        return None
    assert answer.status_code in (200, 202), answer.text
    return answer.content


def text_of(answer: bytes, way: str) -> str:
    if way.endswith("-stream"):
        frames = [one for one in answer.split(b"\n\n") if one.startswith((b"data: {", b"event: "))]
        deltas = [data_of(one) for one in frames]
        if way == "chat-stream":
            return "".join(one["choices"][0]["delta"].get("content", "") for one in deltas)
        return "".join(one["delta"] for one in deltas if one["type"] == "response.output_text.delta")
    body = json.loads(answer)
    if way == "chat":
        return body["choices"][0]["message"]["content"]
    return body["output"][0]["content"][0]["text"]


@pytest.mark.promise("L1b")
@pytest.mark.promise("L3")
@pytest.mark.parametrize("way", ROUTES)
def test_a_request_repeated_with_its_key_runs_once_over_a_broken_network_and_a_kill(person: Person, way: str) -> None:
    port = free_port()
    with ScriptedServer(script([Stall("stream"), says("all is well")])) as model, cutting(port, 5) as line:
        person.uses(model.url)
        with up(person, "--port", str(port)) as running, running.client() as client, through(line, client) as cut:
            begin(client, "s")
            until(lambda: whole(cut, way) or model.requests or None)
            model.wait(1)
            for _ in range(3):
                whole(cut, way)
            running.ends(signal.SIGKILL)
        with up(person, "--port", str(port)) as running, running.client() as client, through(line, client) as cut:
            first = until(lambda: whole(cut, way))
            name = "s" if way == "input" else client.get("/v1/sessions").json()["sessions"][0]["id"]
            client.get(f"/v1/sessions/{name}/events?until=idle")
            journal = client.get(f"/v1/sessions/{name}/entries").json()["entries"]
            again = [whole(client, way) for _ in range(2)]
        assert [entry["text"] for entry in journal if entry["type"] in ("input", "reply")] == ["go", "all is well"]
        assert [entry["outcome"] for entry in journal if entry["type"] == "ended"] == ["done"]
        if way == "input":
            assert [first, first] == again
        elif way == "response-background":
            assert again[0] == again[1]
        else:
            assert {text_of(one, way) for one in (first, *again) if one} == {"all is well"}
        assert len(model.requests) == 2


@pytest.mark.promise("L1b")
def test_a_completion_cut_in_its_stream_is_the_same_when_repeated_streamed_or_not(person: Person) -> None:
    with ScriptedServer(script(*STEPS)) as model:
        person.uses(model.url)
        with (
            up(person) as running,
            running.client() as client,
            cutting(running.port, 7) as line,
            through(line, client) as cut,
        ):
            streamed = until(lambda: whole(cut, "chat-stream"))
            plain = until(lambda: whole(cut, "chat"))
            uncut = [whole(client, way) or b"" for way in ("chat-stream", "chat")]
        assert plain == uncut[1]
        words = [text_of(one, "chat-stream") for one in (streamed, uncut[0])]
        assert [*words, text_of(plain, "chat")] == [f"let me look\n\nand once more\n\n{WORDS}"] * 3
        ids = {data_of(one)["id"] for one in streamed.split(b"\n\n") if one.startswith(b"data: {")}
        assert ids == {json.loads(plain)["id"]}
        assert (len(model.requests), line.cuts > 5) == (3, True)
