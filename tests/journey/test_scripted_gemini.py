"""Tests of the scripted server with requests of the Gemini API, as the public documents describe them."""

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from outrider.core.types import Usage
from outrider.testing.scripted_model import call, says
from outrider.testing.scripted_server.script import (
    Cut,
    Empty,
    ErrorStatus,
    Overflow,
    Script,
    ScriptRule,
    Stall,
    script,
)
from outrider.testing.scripted_server.server import ScriptedServer, open_scripted_server

WHOLE = "/v1beta/models/gemini-x:generateContent"
STREAM = "/v1beta/models/gemini-x:streamGenerateContent?alt=sse"
LOOK = says(
    "I look.",
    call("read", path="a b.txt"),
    call("list"),
    reasoning="Where is it?",
    usage=Usage(input=90, output=30, cached=40, reasoning=5),
)


def user(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "parts": list(parts)}


def text(words: str) -> dict[str, Any]:
    return {"text": words}


BODY: dict[str, Any] = {"contents": [user(text("hi"))]}


@pytest.fixture
def client() -> Iterator[httpx2.Client]:
    with httpx2.Client(timeout=60) as http:
        yield http


def events(answer: httpx2.Response) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix("data: ")) for line in answer.text.splitlines() if line]


def parts_of(response: dict[str, Any]) -> list[dict[str, Any]]:
    return response["candidates"][0]["content"]["parts"]


def test_a_reply_has_its_thought_text_calls_and_usage(client: httpx2.Client) -> None:
    with ScriptedServer(script(LOOK)) as server:
        whole = client.post(server.root + WHOLE, json=BODY).json()
        streamed = events(client.post(server.root + STREAM, json=BODY))
    thought, words, *calls = parts_of(whole)
    assert (thought, words) == ({"text": "Where is it?", "thought": True}, {"text": "I look."})
    assert [(one["functionCall"]["name"], one["functionCall"]["args"]) for one in calls] == [
        ("read", {"path": "a b.txt"}),
        ("list", {}),
    ]
    assert len({one["functionCall"]["id"] for one in calls}) == 2
    usage = {
        "promptTokenCount": 90,
        "cachedContentTokenCount": 40,
        "candidatesTokenCount": 25,
        "thoughtsTokenCount": 5,
        "totalTokenCount": 120,
    }
    assert (whole["usageMetadata"], streamed[-1]["usageMetadata"]) == (usage, usage)
    pieces = [part for event in streamed for part in parts_of(event)]
    assert "".join(part["text"] for part in pieces if "text" in part and not part.get("thought")) == "I look."
    assert "".join(part["text"] for part in pieces if part.get("thought")) == "Where is it?"
    assert [part["functionCall"]["name"] for part in pieces if "functionCall" in part] == ["read", "list"]
    assert [event["candidates"][0].get("finishReason") for event in streamed][-2:] == [None, "STOP"]
    assert (whole["modelVersion"], whole["candidates"][0]["finishReason"]) == ("gemini-x", "STOP")


@pytest.mark.parametrize("has_ids", [True, False])
def test_results_lead_to_the_next_reply_with_ids_and_without(client: httpx2.Client, has_ids: bool) -> None:
    rule = ScriptRule("look", ((LOOK,), (says("It is empty."),)))
    with ScriptedServer(Script(rules=(rule,))) as server:
        contents = [user(text("earlier")), {"role": "model", "parts": [text("so "), text("what")]}, user(text("look"))]
        first = client.post(server.root + WHOLE, json={"contents": contents}).json()
        model, results = first["candidates"][0]["content"], list[dict[str, Any]]()
        for part in model["parts"]:
            if "functionCall" in part:
                id = {"id": part["functionCall"]["id"]} if has_ids else {}
                if not has_ids:
                    del part["functionCall"]["id"]
                name = part["functionCall"]["name"]
                results.append({"functionResponse": {**id, "name": name, "response": {"output": "nothing"}}})
        # A program may keep the pieces of a stream as several messages of the model.
        pieces = [{"role": "model", "parts": [part]} for part in model["parts"]]
        last = client.post(server.root + WHOLE, json={"contents": [*contents, *pieces, user(*results)]}).json()
    assert parts_of(last) == [{"text": "It is empty."}]


def test_the_system_instruction_and_the_tools_are_read(client: httpx2.Client) -> None:
    tools = [{"functionDeclarations": [{"name": "list", "parametersJsonSchema": {"type": "object"}}]}]
    body = {**BODY, "contents": [user(text("list the files"))], "tools": tools, "systemInstruction": user(text("Be."))}
    with ScriptedServer() as server:
        answer = client.post(server.root + WHOLE, json=body).json()
        [request] = server.requests
    assert [part["functionCall"]["name"] for part in parts_of(answer) if "functionCall" in part] == ["list"]
    assert (request.path, request.body) == (WHOLE, body)


def test_faults_have_the_form_of_this_api(client: httpx2.Client) -> None:
    lines = [
        ErrorStatus(401, "bad key"),
        ErrorStatus(429, retry_after=2),
        Overflow(),
        Empty(),
        says("so far", cut="length"),
    ]
    with ScriptedServer(script(lines)) as server:
        answers = [client.post(server.root + WHOLE, json=BODY, headers={"x-goog-api-key": "secret"}) for _ in lines]
        assert "secret" not in client.get(f"{server.root}/requests").text
    assert [answer.status_code for answer in answers] == [401, 429, 400, 200, 200]
    assert answers[0].json() == {"error": {"code": 401, "message": "bad key", "status": "UNAUTHENTICATED"}}
    assert answers[1].headers["retry-after"] == "2"
    assert "exceeds the maximum number of tokens" in answers[2].json()["error"]["message"]
    assert parts_of(answers[3].json()) == []
    assert answers[4].json()["candidates"][0]["finishReason"] == "MAX_TOKENS"


def test_requests_that_are_no_conversation_are_refused(client: httpx2.Client) -> None:
    open_call: dict[str, Any] = {"role": "model", "parts": [{"functionCall": {"name": "read", "args": {}}}]}
    bodies: list[dict[str, Any]] = [
        {},
        {"contents": []},
        {"contents": [user(text("hi")), open_call]},
    ]
    with ScriptedServer(script("hi")) as server:
        assert [client.post(server.root + WHOLE, json=body).status_code for body in bodies] == [400] * 3
        assert client.post(f"{server.root}/v1beta/models/m:embedContent", json=BODY).status_code == 404


def test_a_stream_can_be_cut(client: httpx2.Client) -> None:
    with (
        ScriptedServer(script([Cut(), says("one two three")])) as server,
        client.stream("POST", server.root + STREAM, json=BODY) as stream,
        pytest.raises(httpx2.RemoteProtocolError),
    ):
        list(stream.iter_bytes())


@pytest.mark.anyio
async def test_a_stalled_stream_continues_when_it_is_released() -> None:
    async with (
        open_scripted_server(script([Stall("stream"), says("one two three")])) as server,
        httpx2.AsyncClient(timeout=60) as client,
        client.stream("POST", server.root + STREAM, json=BODY) as stream,
    ):
        chunks = stream.aiter_bytes()
        first = await anext(chunks)
        server.release()
        whole = first + b"".join([chunk async for chunk in chunks])
    assert (first.count(b"\n\n"), whole.count(b"\n\n")) == (2, 4)
