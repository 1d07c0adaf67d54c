"""Tests of the scripted server with the official clients, with raw requests, and as a process."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from openai.types.responses import ResponseInputParam

from outrider.core.errors import Refused
from outrider.core.types import Usage
from outrider.testing.scripted_model import broken_call, call, says
from outrider.testing.scripted_server.script import (
    Cut,
    Empty,
    ErrorStatus,
    Garbage,
    Overflow,
    Script,
    ScriptRule,
    Stall,
    parse_script,
    script,
)
from outrider.testing.scripted_server.server import ScriptedServer, open_scripted_server

PATHS = ["/v1/chat/completions", "/v1/responses", "/v1/messages"]
WORDS = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "m", "messages": WORDS},
    "/v1/responses": {"model": "m", "input": WORDS},
    "/v1/messages": {"model": "m", "max_tokens": 9, "messages": WORDS},
}
TWO_CALLS = says(
    "I look.",
    call("read", path="a b.txt"),
    call("list"),
    reasoning="Where is it?",
    usage=Usage(input=90, output=30, cached=40, written=10, reasoning=5),
)


@pytest.fixture
def client() -> Iterator[httpx2.Client]:
    with httpx2.Client(timeout=60) as http:
        yield http


def openai_client(server: ScriptedServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url, api_key="secret", max_retries=0)


def anthropic_client(server: ScriptedServer) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.root, api_key="secret", max_retries=0)


def test_openais_client_chats_with_calls_streamed_and_not_streamed() -> None:
    with ScriptedServer(script(TWO_CALLS, says("It is empty."))) as server, openai_client(server) as asking:
        messages: list[Any] = [{"role": "user", "content": "hi"}]
        whole = asking.chat.completions.create(model="m", messages=messages)
        with asking.chat.completions.stream(
            model="m", messages=messages, stream_options={"include_usage": True}
        ) as stream:
            words = [event.delta for event in stream if event.type == "content.delta"]
            streamed = stream.get_final_completion()
        assert words == ["", "I ", "look."]
        for completion in (whole, streamed):
            choice = completion.choices[0]
            called = [
                (made.function.name, json.loads(made.function.arguments))
                for made in choice.message.tool_calls or []
                if made.type == "function"
            ]
            assert (choice.message.content, choice.finish_reason) == ("I look.", "tool_calls")
            assert called == [("read", {"path": "a b.txt"}), ("list", {})]
            assert choice.message.model_extra is not None
            assert choice.message.model_extra["reasoning_content"] == "Where is it?"
            assert completion.usage is not None
            assert (completion.usage.prompt_tokens, completion.usage.completion_tokens) == (90, 30)
        assert whole.id != streamed.id
        calls = whole.choices[0].message.tool_calls or []
        messages.append(whole.choices[0].message.model_dump(exclude_none=True))
        messages += [{"role": "tool", "tool_call_id": made.id, "content": ""} for made in calls]
        last = asking.chat.completions.create(model="m", messages=messages)
        assert last.choices[0].message.content == "It is empty."


def test_openais_client_continues_responses_by_items_or_by_the_previous_id() -> None:
    with ScriptedServer(script(TWO_CALLS, says("It is empty."))) as server, openai_client(server) as asking:
        whole = asking.responses.create(model="m", input="hi")
        with asking.responses.stream(model="m", input="hi") as stream:
            kinds = [event.type for event in stream]
            streamed = stream.get_final_response()
        assert kinds[:3] == ["response.created", "response.in_progress", "response.output_item.added"]
        assert kinds[-1] == "response.completed"
        for response in (whole, streamed):
            assert [item.type for item in response.output] == ["reasoning", "message", "function_call", "function_call"]
            assert (response.output_text, response.status) == ("I look.", "completed")
            made = [(item.name, item.arguments) for item in response.output if item.type == "function_call"]
            assert made == [("read", '{"path":"a b.txt"}'), ("list", "{}")]
            assert response.usage is not None
            assert (response.usage.input_tokens, response.usage.output_tokens_details.reasoning_tokens) == (90, 5)
        results: ResponseInputParam = [
            {"type": "function_call_output", "call_id": item.call_id, "output": ""}
            for item in whole.output
            if item.type == "function_call"
        ]
        items: list[Any] = [{"role": "user", "content": "hi"}, *whole.output, *results]
        assert asking.responses.create(model="m", input=items).output_text == "It is empty."
        named = asking.responses.create(model="m", previous_response_id=whole.id, input=results)
        assert named.output_text == "It is empty."
        with pytest.raises(openai.BadRequestError, match="not found"):
            asking.responses.create(model="m", previous_response_id="resp_none", input="hi")


def test_anthropics_client_chats_with_thinking_and_calls() -> None:
    with ScriptedServer(script(TWO_CALLS, says("It is empty."))) as server, anthropic_client(server) as asking:
        messages: list[Any] = [{"role": "user", "content": "hi"}]
        whole = asking.messages.create(model="m", max_tokens=99, messages=messages)
        with asking.messages.stream(model="m", max_tokens=99, messages=messages) as stream:
            words = list(stream.text_stream)
            streamed = stream.get_final_message()
        assert words == ["I ", "look."]
        for message in (whole, streamed):
            assert [block.type for block in message.content] == ["thinking", "text", "tool_use", "tool_use"]
            made = [(block.name, block.input) for block in message.content if block.type == "tool_use"]
            assert made == [("read", {"path": "a b.txt"}), ("list", {})]
            usage = message.usage
            assert (usage.input_tokens, usage.cache_read_input_tokens, usage.cache_creation_input_tokens) == (
                40,
                40,
                10,
            )
            assert (usage.output_tokens, message.stop_reason) == (30, "tool_use")
        uses = [block for block in whole.content if block.type == "tool_use"]
        messages += [
            {"role": "assistant", "content": whole.content},
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": use.id, "content": ""} for use in uses],
            },
        ]
        last = asking.messages.create(model="m", max_tokens=99, messages=messages)
        assert [block.text for block in last.content if block.type == "text"] == ["It is empty."]


def test_system_messages_among_anthropics_messages_are_instructions(client: httpx2.Client) -> None:
    note = {"role": "system", "content": [{"type": "text", "text": "7 tokens left"}]}
    rules = (ScriptRule("^hi$", ((says("hello"),),)), ScriptRule("tokens", ((says("what?"),),)))
    with ScriptedServer(Script(rules=rules)) as server:
        body = {**BODIES["/v1/messages"], "messages": [*WORDS, note]}
        assert client.post(f"{server.url}/messages", json=body).json()["content"][0]["text"] == "hello"


def test_both_clients_list_the_model() -> None:
    with ScriptedServer() as server, openai_client(server) as one, anthropic_client(server) as other:
        assert [model.id for model in one.models.list()] == ["practice"]
        assert [model.display_name for model in other.models.list()] == ["Practice"]


def test_custom_tools_and_namespaces_are_called_in_the_form_of_responses(client: httpx2.Client) -> None:
    source = '[{"calls": [{"tool": "apply_patch", "input": "*** Begin"}, {"tool": "t", "namespace": "mcp__x"}]}]'
    with ScriptedServer(parse_script(source)) as server:
        body = client.post(f"{server.url}/responses", json={"model": "m", "input": "hi"}).json()
    custom, function = body["output"]
    assert (custom["type"], custom["name"], custom["input"]) == ("custom_tool_call", "apply_patch", "*** Begin")
    assert (function["type"], function["namespace"], function["arguments"]) == ("function_call", "mcp__x", "{}")
    assert custom["call_id"] != function["call_id"]


def test_requests_are_recorded_without_their_keys(client: httpx2.Client) -> None:
    with ScriptedServer(script("hi")) as server:
        headers = {"authorization": "Bearer secret", "x-api-key": "secret", "x-more": "1"}
        client.post(f"{server.url}/chat/completions", json=BODIES["/v1/chat/completions"], headers=headers)
        [heard] = server.wait(1)
        assert (heard.method, heard.path, heard.body) == (
            "POST",
            "/v1/chat/completions",
            BODIES["/v1/chat/completions"],
        )
        looked_up = client.get(f"{server.root}/requests")
        assert looked_up.json()[0]["headers"]["x-more"] == "1"
        assert "secret" not in looked_up.text
        assert client.get(f"{server.root}/health").json() == {"status": "ok"}


@pytest.mark.parametrize("path", PATHS)
def test_the_faults_of_a_step_are_used_once_each_and_then_it_answers(path: str, client: httpx2.Client) -> None:
    faults = ErrorStatus(429, "slow down", 1.5), ErrorStatus(500), ErrorStatus(401, "bad key")
    with ScriptedServer(script([*faults, says("hi")])) as server:
        answers = [client.post(server.root + path, json=BODIES[path]) for _ in range(5)]
    assert [answer.status_code for answer in answers] == [429, 500, 401, 200, 200]
    assert answers[0].headers["retry-after"] == "1.5"
    errors = [answer.json()["error"] for answer in answers[:3]]
    kinds = {"/v1/messages": ["rate_limit_error", "api_error", "authentication_error"]}
    usual = ["requests", "server_error", "invalid_request_error"]
    assert [error["type"] for error in errors] == kinds.get(path, usual)
    assert [error["message"] for error in errors] == ["slow down", "the script says 500", "bad key"]


def test_the_clients_raise_their_own_errors_for_a_prompt_that_is_too_long() -> None:
    with (
        ScriptedServer(script([Overflow()])) as server,
        openai_client(server) as one,
        anthropic_client(server) as other,
    ):
        with pytest.raises(openai.BadRequestError) as chat:
            one.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
        assert chat.value.code == "context_length_exceeded"
        with pytest.raises(openai.BadRequestError) as responses:
            one.responses.create(model="m", input="hi")
        assert responses.value.code == "context_length_exceeded"
        with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
            other.messages.create(model="m", max_tokens=9, messages=[{"role": "user", "content": "hi"}])
        events = list(one.responses.create(model="m", input="hi", stream=True))
        assert events[-1].type == "response.failed"
        assert events[-1].response.error is not None
        assert events[-1].response.error.code == "context_length_exceeded"


@pytest.mark.parametrize("path", PATHS)
def test_a_cut_stream_is_the_beginning_of_the_complete_one(path: str, client: httpx2.Client) -> None:
    lines = [Cut(0), Cut(150), says("one two three")]
    body = {**BODIES[path], "stream": True}
    with ScriptedServer(script(lines)) as server:
        for expected in (0, 150):
            got: list[bytes] = []
            with (
                client.stream("POST", server.root + path, json=body) as stream,
                pytest.raises(httpx2.RemoteProtocolError),
            ):
                got.extend(stream.iter_bytes())
            assert (len(b"".join(got)), stream.status_code) == (expected, 200)
        assert client.post(server.root + path, json=body).status_code == 200


@pytest.mark.parametrize("path", PATHS)
def test_garbage_is_not_json_and_an_empty_reply_is_valid_but_empty(path: str, client: httpx2.Client) -> None:
    with ScriptedServer(script([Garbage(), Garbage(), Empty()])) as server:
        assert client.post(server.root + path, json=BODIES[path]).text == "<html>garbage"
        streamed = client.post(server.root + path, json={**BODIES[path], "stream": True})
        assert streamed.text == 'data: {"type": garbage\n\n'
        body = client.post(server.root + path, json=BODIES[path]).json()
    assert {
        "/v1/chat/completions": lambda: body["choices"][0]["message"]["content"] == "",
        "/v1/responses": lambda: body["output"] == [],
        "/v1/messages": lambda: body["content"] == [] and body["stop_reason"] == "end_turn",
    }[path]()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.anyio
async def test_a_stalled_stream_continues_when_it_is_released(path: str) -> None:
    async with open_scripted_server(script([Stall("stream"), says("one two three")])) as server:
        body = {**BODIES[path], "stream": True}
        async with (
            httpx2.AsyncClient(timeout=60) as client,
            client.stream("POST", server.root + path, json=body) as stream,
        ):
            chunks = stream.aiter_bytes()
            first = await anext(chunks)
            server.release()
            whole = first + b"".join([chunk async for chunk in chunks])
        assert first.endswith(b"\n\n")
        assert first.count(b"\n\n") == whole.count(b"\n\n") // 2
        assert whole.endswith(b"\n\n")


@pytest.mark.anyio
async def test_a_request_that_stalls_before_its_headers_waits_until_the_client_disconnects() -> None:
    timeout = httpx2.Timeout(60, read=0.2)
    body = BODIES["/v1/responses"]
    async with (
        open_scripted_server(script([Stall("headers"), says("hi")])) as server,
        httpx2.AsyncClient(timeout=timeout) as client,
    ):
        with pytest.raises(httpx2.ReadTimeout):
            await client.post(f"{server.url}/responses", json=body)
        await server.wait_async(1)
        again = await client.post(f"{server.url}/responses", json=body, timeout=60)
        assert again.json()["output"][0]["content"][0]["text"] == "hi"


def test_a_server_stops_at_once_with_stalled_requests() -> None:
    with ScriptedServer(script([Stall("headers")])) as server, httpx2.Client() as client:
        with pytest.raises(httpx2.ReadTimeout):
            client.post(f"{server.url}/messages", json=BODIES["/v1/messages"], timeout=0.2)
        server.wait(1)


def test_broken_arguments_are_sent_unchanged(client: httpx2.Client) -> None:
    with ScriptedServer(script(says("", broken_call("read", '{"path": ')))) as server:
        body = client.post(f"{server.url}/chat/completions", json=BODIES["/v1/chat/completions"]).json()
    assert body["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] == '{"path": '


def test_a_reply_that_ends_at_its_length_limit_says_so_on_each_wire(client: httpx2.Client) -> None:
    with ScriptedServer(script(says("so far", cut="length"))) as server:
        chat, responses, messages = (client.post(server.root + path, json=BODIES[path]).json() for path in PATHS)
    assert chat["choices"][0]["finish_reason"] == "length"
    assert (responses["status"], responses["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert messages["stop_reason"] == "max_tokens"


@pytest.mark.promise("S3")
def test_requests_that_the_real_providers_refuse_are_refused(client: httpx2.Client) -> None:
    call_without_result = {
        "role": "assistant",
        "tool_calls": [{"id": "x", "function": {"name": "t", "arguments": "{}"}}],
    }
    with ScriptedServer(script("hi")) as server:
        refused = [
            client.post(f"{server.url}/chat/completions", json={"messages": [*WORDS, call_without_result, *WORDS]}),
            client.post(f"{server.url}/chat/completions", content=b"nonsense"),
            client.post(f"{server.url}/chat/completions", json={"messages": [{"no": "role"}]}),
            client.post(f"{server.url}/messages", json={"messages": WORDS}),
            client.post(f"{server.url}/embeddings", json={}),
            client.get(f"{server.root}/nothing"),
            client.post(f"{server.url}/responses", content=b" " * (10 * 1024 * 1024 + 1)),
            client.get(f"{server.root}/requests", headers={"host": "evil.example"}),
            client.get(f"{server.root}/requests", headers={"origin": "https://evil.example"}),
        ]
    assert [answer.status_code for answer in refused] == [400, 400, 400, 400, 404, 404, 413, 403, 403]


def test_without_a_script_it_answers_as_the_practice_model_with_the_tools_it_is_offered() -> None:
    tools: Any = [{"type": "function", "function": {"name": "list", "parameters": {"type": "object"}}}]
    with ScriptedServer() as server, openai_client(server) as asking:
        messages: list[Any] = [{"role": "user", "content": "list the files"}]
        first = asking.chat.completions.create(model="m", messages=messages, tools=tools).choices[0].message
        assert first.tool_calls is not None
        result = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "boat.txt  3 bytes"}
        messages += [first.model_dump(exclude_none=True), result]
        last = asking.chat.completions.create(model="m", messages=messages, tools=tools).choices[0].message
    assert last.content is not None
    assert last.content.startswith("This folder contains 1 file and 0 folders:\n\n- `boat.txt`")


def test_a_port_that_is_taken_is_refused() -> None:
    with ScriptedServer() as server, pytest.raises(Refused, match="cannot be used"):
        ScriptedServer(port=int(server.root.rsplit(":", 1)[1]))


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
def test_the_command_prints_its_address_and_stops_cleanly(
    ending: signal.Signals, tmp_path: Path, client: httpx2.Client
) -> None:
    file = tmp_path / "script.json"
    file.write_text('{"replies": [[{"stall": "headers"}, "from a file"]]}')
    command = [sys.executable, "-m", "outrider", "practice-model", "--script", str(file), "--latency", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        listening = json.loads(process.stdout.readline())
        assert listening["pid"] == process.pid
        with pytest.raises(httpx2.ReadTimeout):
            client.post(f"{listening['url']}/chat/completions", json=BODIES["/v1/chat/completions"], timeout=0.3)
        body = client.post(f"{listening['url']}/chat/completions", json=BODIES["/v1/chat/completions"]).json()
        os.kill(process.pid, ending)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    assert body["choices"][0]["message"]["content"] == "from a file"


@pytest.mark.command("practice-model")
def test_the_command_replies_with_the_text_of_say(client: httpx2.Client) -> None:
    command = [sys.executable, "-m", "outrider", "practice-model", "--say", "hello", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        listening = json.loads(process.stdout.readline())
        body = client.post(f"{listening['url']}/messages", json=BODIES["/v1/messages"]).json()
        process.terminate()
        process.communicate(timeout=60)
    assert process.returncode == 0
    assert body["content"][0]["text"] == "hello"
