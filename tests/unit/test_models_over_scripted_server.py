"""Tests of each wire's client against the scripted server, which implements the other side independently."""

from typing import Any

import pytest

from outrider.config.models import ModelChoice
from outrider.config.secrets import Secret
from outrider.core.errors import ContextTooLong, Refused, Unavailable
from outrider.core.events import Delta, Result
from outrider.core.prompt import AssistantMessage, Prompt, ToolMessage, UserMessage
from outrider.core.types import Call, ToolSpec, call_id
from outrider.models.resilience import open_models
from outrider.testing.scripted_model import broken_call, call, says
from outrider.testing.scripted_server.script import Cut, Empty, ErrorStatus, Fault, Garbage, Overflow, Stall, script
from outrider.testing.scripted_server.server import ScriptedServer, open_scripted_server

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("wire", ["openai-chat", "openai-responses", "anthropic"])]
TOOLS = (ToolSpec("read", "Read a file.", {"type": "object", "properties": {"path": {"type": "string"}}}),)
PROMPT = Prompt("be kind", [UserMessage("hi")], TOOLS, 1)


class NoBlobs:
    def put(self, content: bytes) -> str:
        return ""

    def get(self, name: str) -> bytes:
        raise Refused(f"no blob {name}")


def choice(wire: str, server: ScriptedServer, **rest: Any) -> ModelChoice:
    settings: dict[str, Any] = {"attempts": 1, "idle_timeout": 20.0, **rest}
    return ModelChoice(f"{wire}:m", wire, "m", url=server.url, key=Secret("sk-test"), **settings)


async def test_a_session_continues_with_calls_results_and_reasoning(wire: str) -> None:
    first = says("looking", call("read", path="a"), call("read", path="b"), reasoning="hm, two files")
    async with (
        open_scripted_server(script(first, says("done"))) as server,
        open_models([choice(wire, server)], NoBlobs()) as model,
    ):
        deltas: list[Delta] = []
        reply = await model.reply(PROMPT, deltas.append)
        one, two = call_id(1, 0), call_id(1, 1)
        assert (reply.text, reply.calls) == (
            "looking",
            (Call(one, "read", {"path": "a"}), Call(two, "read", {"path": "b"})),
        )
        assert "".join(delta.text for delta in deltas if delta.kind == "text") == "looking"
        assert [delta.text for delta in deltas if delta.kind == "call"] == ["read", "read"]
        assert reply.usage.input > 0
        assert reply.usage.output > 0
        results = ToolMessage((Result(one, "x"), Result(two, "y", failed=True)))
        reply_message = AssistantMessage(reply.text, reply.calls, reply.reasoning)
        after = Prompt("be kind", [UserMessage("hi"), reply_message, results, UserMessage("and?")], TOOLS, 5, "tail")
        assert (await model.reply(after, lambda _: None)).text == "done"


async def test_broken_arguments_arrive_as_broken(wire: str) -> None:
    async with (
        open_scripted_server(script(says("", broken_call("read", '{"path": ')))) as server,
        open_models([choice(wire, server)], NoBlobs()) as model,
    ):
        reply = await model.reply(PROMPT, lambda _: None)
    assert reply.calls == (Call(call_id(1, 0), "read", {}, broken='{"path": '),)


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (ErrorStatus(401, "no"), Refused),
        (ErrorStatus(400, "no"), Refused),
        (ErrorStatus(429, "slow", 99.0), Unavailable),
        (ErrorStatus(500, "oops"), Unavailable),
        (Cut(0), Unavailable),
        (Cut(300), Unavailable),
        (Cut(), Unavailable),
        (Garbage(), Unavailable),
        (Empty(), Unavailable),
        (Overflow(), ContextTooLong),
    ],
)
async def test_every_fault_raises_and_the_next_reply_is_complete(
    wire: str, fault: Fault, kind: type[Exception]
) -> None:
    async with (
        open_scripted_server(script([fault, says("here is a whole reply of some words")])) as server,
        open_models([choice(wire, server)], NoBlobs()) as model,
    ):
        with pytest.raises(kind) as caught:
            await model.reply(PROMPT, lambda _: None)
        assert "sk-test" not in str(caught.value)
        assert (await model.reply(PROMPT, lambda _: None)).text == "here is a whole reply of some words"


async def test_a_reply_that_is_cut_has_streamed_some_of_its_words(wire: str) -> None:
    texts: list[str] = []
    async with (
        open_scripted_server(script([Cut(), says("here is a whole reply of some words")])) as server,
        open_models([choice(wire, server)], NoBlobs()) as model,
    ):
        with pytest.raises(Unavailable):
            await model.reply(PROMPT, lambda delta: texts.append(delta.text))
    assert "here is a whole reply of some words".startswith("".join(texts))
    assert texts


@pytest.mark.parametrize("where", ["headers", "stream"])
async def test_a_stalled_response_is_unavailable_after_the_timeout(wire: str, where: Any) -> None:
    async with (
        open_scripted_server(script([Stall(where), says("some words")])) as server,
        open_models([choice(wire, server, idle_timeout=0.3)], NoBlobs()) as model,
    ):
        with pytest.raises(Unavailable, match=r"sent nothing for 0\.3 s"):
            await model.reply(PROMPT, lambda _: None)
