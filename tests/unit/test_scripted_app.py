"""Property tests of the scripted server: it answers or refuses any request."""

from collections.abc import MutableMapping
from typing import Any

import anyio
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.testing.scripted_server.app import RequestLog, ScriptedApp
from outrider.testing.scripted_server.script import Script, script

PATHS = ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1beta/models/m:generateContent"]
NAMES = [
    "role",
    "content",
    "type",
    "text",
    "id",
    "call_id",
    "name",
    "arguments",
    "function",
    "input",
    "output",
    "parts",
]
WORDS = ["user", "assistant", "text", "message", "function", "function_call", "tool_use", "tool_result", "x", "{}"]
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=5),
    max_leaves=12,
)


def some(**fields: object) -> st.SearchStrategy[Any]:
    """An object of these fields, any of which may be missing or wrong."""
    usual = {name: st.just(value) | JSON for name, value in fields.items()}
    return st.fixed_dictionaries({}, optional=usual)


CALL = {"id": "a", "type": "function", "function": {"name": "read", "arguments": "{}"}}
USE: dict[str, object] = {"type": "tool_use", "id": "a", "name": "read", "input": {}}
FUNCTION_CALL: dict[str, object] = {"functionCall": {"name": "read", "args": {}}}
PARTS = st.one_of(
    some(role="user", content="list the files"),
    some(role="assistant", content="x", tool_calls=[CALL]),
    some(role="tool", tool_call_id="a", content="x"),
    some(role="assistant", content=[USE]),
    some(role="user", content=[{"type": "tool_result", "tool_use_id": "a", "content": "x"}]),
    some(type="function_call", call_id="a", name="read", arguments="{}"),
    some(type="function_call_output", call_id="a", output="x"),
    some(type="reasoning", summary=[], content=None),
    some(role="model", parts=[{"text": "x"}, FUNCTION_CALL]),
    some(role="user", parts=[{"functionResponse": {"name": "read", "response": {"output": "x"}}}]),
)
TOOLS = [{"type": "function", "name": "list", "input_schema": {}, "function": {"name": "list"}}]
BODIES = some(
    model="m",
    max_tokens=9,
    stream=True,
    stream_options={"include_usage": True},
    include=["reasoning.encrypted_content"],
    tools=TOOLS,
    system="s",
    instructions="s",
    previous_response_id="resp_x",
).flatmap(
    lambda body: st.lists(PARTS, min_size=1, max_size=4).map(
        lambda parts: {**body, "messages": parts, "input": parts, "contents": parts}
    )
)


async def asked(app: ScriptedApp, path: str, content: bytes) -> int:
    sent: list[MutableMapping[str, Any]] = []

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": content, "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": path, "headers": [(b"host", b"localhost:1")]}
    await app(scope, receive, send)
    return sent[0]["status"]


@given(st.sampled_from(PATHS), BODIES)
def test_any_body_is_answered_or_refused(path: str, body: dict[str, Any]) -> None:
    for lines in (Script(), script("hi")):
        status = anyio.run(asked, ScriptedApp(lines, RequestLog()), path, msgspec.json.encode(body))
        assert status in (200, 400)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "content", [b"", b"[]", b"\xff", b'"x"', b"[" * 100_000], ids=["none", "list", "bytes", "text", "deep"]
)
def test_a_body_that_is_not_a_json_object_is_refused(path: str, content: bytes) -> None:
    assert anyio.run(asked, ScriptedApp(Script(), RequestLog()), path, content) == 400
