"""Tests of each wire's parser with recorded streams: the same reply from each, and never half of one."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from outrider.config.models import ModelChoice
from outrider.config.secrets import Secret
from outrider.core.errors import ContextTooLong, Refused, Unavailable
from outrider.core.events import Delta, Reply
from outrider.core.types import Call, Prices, Reasoning, Usage, call_id
from outrider.models.anthropic import MessagesWire
from outrider.models.http_model import Wire
from outrider.models.openai_chat import ChatWire
from outrider.models.openai_responses import ResponsesWire
from outrider.system.sse import SseParser

RECORDED = Path(__file__).parent / "recorded"
WIRES = ["openai-chat", "openai-responses", "anthropic"]
A, B = call_id(7, 0), call_id(7, 1)


class NoBlobs:
    def put(self, content: bytes) -> str:
        return ""

    def get(self, name: str) -> bytes:
        raise Refused(f"no blob {name}")


def wire_of(name: str) -> Wire:
    choice = ModelChoice(f"{name}:m", name, "m", url="http://model.test", key=Secret("sk-hidden"))
    wires: dict[str, Callable[[ModelChoice, NoBlobs], Wire]] = {
        "openai-chat": ChatWire,
        "openai-responses": ResponsesWire,
        "anthropic": MessagesWire,
    }
    return wires[name](choice, NoBlobs())


def parse(name: str, content: bytes, size: int = 0) -> tuple[Reply, list[Delta]]:
    """A stream parsed as `WireModel` does it, in pieces of `size` bytes. Raises Unavailable if it is incomplete."""
    deltas: list[Delta] = []
    parser = wire_of(name).parser(deltas.append)
    stream = SseParser()
    pieces = [content[i : i + size] for i in range(0, len(content), size)] if size else [content]
    for piece in pieces:
        for event in stream.feed(piece):
            parser.event(event.name, event.data)
            if parser.done:
                break
    for event in stream.close():
        parser.event(event.name, event.data)
    if not parser.complete:
        raise Unavailable("broke off")
    return parser.finish().build(7, "m", Prices(1, 2, 0.1)), deltas


def recorded(name: str, case: str) -> bytes:
    return (RECORDED / name / f"{case}.sse").read_bytes()


@pytest.mark.parametrize("name", WIRES)
def test_text_arrives_as_deltas_that_add_up_to_the_reply(name: str) -> None:
    reply, deltas = parse(name, recorded(name, "text"))
    written = 0 if name == "openai-chat" else 3
    cached = 13 if name == "anthropic" else 16
    usage = Usage(input=20, output=5, cached=cached, written=written)
    plain = 20 - cached
    expected = Reply("Grüße, wörld 🌍.", 7, model="m", usage=usage, cost=(plain + cached * 0.1 + 10) / 1e6)
    assert replace(reply, cost=None) == replace(expected, cost=None)
    assert reply.cost == pytest.approx(expected.cost)  # pyright: ignore[reportUnknownMemberType]
    assert deltas == [Delta("Grüße, "), Delta("wörld 🌍.")]


def test_chat_reasoning_is_streamed_and_stored_with_its_host() -> None:
    reply, deltas = parse("openai-chat", recorded("openai-chat", "reasoning"))
    opaque = '{"host":"model.test","field":"reasoning_content"}'
    assert replace(reply, cost=None) == Reply(
        "",
        7,
        (Call(A, "read", {"path": "a.txt"}),),
        (Reasoning("Let me look.", "openai-chat", opaque),),
        "m",
        Usage(input=30, output=12, cached=24, reasoning=4),
    )
    assert deltas == [Delta("Let me ", "reasoning"), Delta("look.", "reasoning"), Delta("read", "call")]


def test_the_encrypted_reasoning_of_a_response_is_stored() -> None:
    reply, deltas = parse("openai-responses", recorded("openai-responses", "reasoning"))
    item = {
        "type": "reasoning",
        "id": "rs_1",
        "encrypted_content": "gAAAAsecret",
        "summary": [{"type": "summary_text", "text": "Look first."}],
    }
    assert [json.loads(part.opaque) for part in reply.reasoning] == [item]
    assert [part.text for part in reply.reasoning] == ["Look first."]
    assert reply.calls == (Call(A, "read", {"path": "a.txt"}),)
    assert reply.usage.reasoning == 4
    assert deltas == [Delta("Look first.", "reasoning"), Delta("read", "call")]


def test_thinking_blocks_are_stored_in_order_with_their_signatures() -> None:
    reply, deltas = parse("anthropic", recorded("anthropic", "reasoning"))
    assert [json.loads(part.opaque) for part in reply.reasoning] == [
        {"type": "thinking", "thinking": "Look first.", "signature": "EqQBsig=="},
        {"type": "redacted_thinking", "data": "EmwKAh=="},
    ]
    assert reply.calls == (Call(A, "read", {"path": "a.txt"}),)
    assert reply.usage == Usage(input=20, output=12, cached=13, written=3, reasoning=4)
    assert deltas == [Delta("Look ", "reasoning"), Delta("first.", "reasoning"), Delta("read", "call")]


@pytest.mark.parametrize("name", WIRES)
def test_parallel_calls_keep_their_order_and_get_our_ids(name: str) -> None:
    reply, _ = parse(name, recorded(name, "parallel"))
    assert (reply.text, reply.calls, reply.cut) == ("On it.", (Call(A, "read", {"path": "a"}), Call(B, "list", {})), "")


@pytest.mark.parametrize("name", WIRES)
def test_a_call_that_is_cut_in_its_arguments_is_broken_and_the_reply_says_why(name: str) -> None:
    reply, _ = parse(name, recorded(name, "cut"))
    assert reply.calls == (Call(A, "write", {}, broken='{"path":"a","text":"Once upo'),)
    assert reply.cut == "length"


@pytest.mark.parametrize("name", WIRES)
@pytest.mark.parametrize("case", ["text", "reasoning", "parallel", "cut"])
def test_a_stream_that_is_cut_at_any_byte_gives_the_same_reply_or_none(name: str, case: str) -> None:
    content = recorded(name, case)
    whole, _ = parse(name, content)
    for end in range(len(content)):
        try:
            reply, _ = parse(name, content[:end])
        except Unavailable:
            continue
        # What a chat server says after its finish reason are numbers, not words.
        assert replace(reply, usage=whole.usage, cost=whole.cost) == whole


@pytest.mark.parametrize("name", WIRES)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 1000])
def test_chunk_boundaries_do_not_matter(name: str, size: int) -> None:
    for case in ("text", "reasoning", "parallel", "cut"):
        content = recorded(name, case)
        assert parse(name, content, size) == parse(name, content)


def bodies() -> Iterator[tuple[str, object]]:
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    message = {"role": "assistant", "content": "hi", "tool_calls": None}
    yield "openai-chat", {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage}
    message = {"type": "message", "content": [{"type": "output_text", "text": "hi"}]}
    counts = {"input_tokens": 3, "output_tokens": 2}
    yield "openai-responses", {"status": "completed", "output": [message], "usage": counts}
    yield "anthropic", {"content": [{"type": "text", "text": "hi"}], "stop_reason": "end_turn", "usage": counts}


@pytest.mark.parametrize(("name", "body"), list(bodies()))
def test_a_response_as_one_json_body_is_parsed(name: str, body: object) -> None:
    parser = wire_of(name).parser(lambda _: None)
    parser.body(json.dumps(body).encode())
    assert parser.complete
    assert parser.finish().build(7, "m", None) == Reply("hi", 7, model="m", usage=Usage(3, 2))


@pytest.mark.parametrize("name", WIRES)
@pytest.mark.parametrize("junk", [b"not json", b"[1,2", b'"text"', b"12", b"\xff\xfe", b'{"choices":7,"type":[]}'])
def test_garbage_is_unavailable(name: str, junk: bytes) -> None:
    parser = wire_of(name).parser(lambda _: None)
    with pytest.raises(Unavailable, match=r"model\.test sent an invalid"):
        parser.event("", junk)
    with pytest.raises(Unavailable):
        wire_of(name).parser(lambda _: None).body(junk)


ERRORS: list[tuple[dict[str, object], type[Exception]]] = [
    ({"type": "overloaded_error", "message": "Overloaded"}, Unavailable),
    ({"code": "server_error", "message": "oops"}, Unavailable),
    ({"code": 502, "message": "bad gateway"}, Unavailable),
    ({"code": "rate_limit_exceeded", "message": "slow down"}, Unavailable),
    ({"type": "invalid_request_error", "message": "no such field"}, Refused),
    ({"code": "context_length_exceeded", "message": "too big"}, ContextTooLong),
    ({"type": "authentication_error", "message": "bad key sk-hidden"}, Refused),
]


@pytest.mark.parametrize("name", WIRES)
@pytest.mark.parametrize(("error", "expected"), ERRORS)
def test_an_error_inside_a_stream_is_classified_like_an_http_status(
    name: str, error: dict[str, object], expected: type[Exception]
) -> None:
    event = {"error": error} if name == "openai-chat" else {"type": "error", "error": error}
    with pytest.raises(expected) as caught:
        wire_of(name).parser(lambda _: None).event("error", json.dumps(event).encode())
    assert "sk-hidden" not in str(caught.value)


def test_a_failed_response_is_an_error() -> None:
    failed = {"type": "response.failed", "response": {"status": "failed", "error": {"code": "server_error"}}}
    with pytest.raises(Unavailable):
        wire_of("openai-responses").parser(lambda _: None).event("", json.dumps(failed).encode())


def chat(*deltas: Mapping[str, object], finish: str = "tool_calls") -> Reply:
    parser = wire_of("openai-chat").parser(lambda _: None)
    for delta in deltas:
        parser.event("", json.dumps({"choices": [{"delta": delta}]}).encode())
    parser.event("", json.dumps({"choices": [{"delta": {}, "finish_reason": finish}]}).encode())
    return parser.finish().build(7, "m", None)


def piece(name: str | None, arguments: object, **rest: object) -> dict[str, object]:
    return {"tool_calls": [{"function": {"name": name, "arguments": arguments}, **rest}]}


TWO = (Call(A, "read", {"path": "a"}), Call(B, "read", {"path": "b"}))


@pytest.mark.parametrize(
    "deltas",
    [
        pytest.param([piece("read", '{"path":"a"}', id="1"), piece("read", '{"path":"b"}', id="2")], id="no index"),
        pytest.param(
            [piece("read", '{"path":"a"}', index=0, id="1"), piece("read", '{"path":"b"}', index=0, id="2")],
            id="all at index 0",
        ),
        pytest.param(
            [piece("read", '{"path":"a"}', index=0, id="call_0"), piece("read", '{"path":"b"}', index=0, id="call_0")],
            id="one id for all",
        ),
        pytest.param([piece("read", '{"path":"a"}'), piece("read", '{"path":"b"}')], id="neither id nor index"),
        pytest.param([piece("read", {"path": "a"}, index=0), piece("read", {"path": "b"}, index=1)], id="objects"),
        pytest.param(
            [
                piece("read", '{"path"', index=0, id="1"),
                piece("read", ':"a"}', index=0, id="1"),
                piece("read", "", index=1, id="2"),
                piece(None, '{"path":"b"}', index=1),
            ],
            id="id and name repeated",
        ),
    ],
)
def test_the_dialects_of_servers_for_parallel_calls_are_parsed(deltas: list[dict[str, object]]) -> None:
    assert chat(*deltas).calls == TWO


@pytest.mark.parametrize(
    ("arguments", "call"),
    [
        ("", Call(A, "read", {})),
        ("  ", Call(A, "read", {})),
        ("{}", Call(A, "read", {})),
        ("[1]", Call(A, "read", {}, broken="[1]")),
        ("null", Call(A, "read", {}, broken="null")),
        ('{"a":', Call(A, "read", {}, broken='{"a":')),
    ],
)
def test_arguments_are_an_object_or_broken(arguments: str, call: Call) -> None:
    assert chat(piece("read", arguments, index=0)).calls == (call,)


def test_a_call_that_is_cut_before_its_arguments_is_broken_not_empty() -> None:
    assert chat(piece("wipe", "", index=0), finish="length").calls == (Call(A, "wipe", {}, broken="(cut off)"),)


def test_content_parts_and_refusals_of_chat_servers_are_text() -> None:
    thinking = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "hi"}]
    reply = chat({"content": thinking}, {"refusal": "no."}, finish="stop")
    assert (reply.text, reply.cut, reply.reasoning) == ("hino.", "refusal", (Reasoning("hm", "openai-chat"),))


def test_streamed_reasoning_details_are_joined_into_blocks() -> None:
    first = {"type": "reasoning.text", "index": 0, "text": "a", "signature": None}
    more = {"type": "reasoning.text", "index": 0, "text": "b", "signature": "s"}
    sealed = {"type": "reasoning.encrypted", "index": 1, "data": "x"}
    deltas = [{"reasoning_details": [part]} for part in (first, more, sealed)]
    reply = chat(*deltas, piece("read", "{}", index=0))
    assert json.loads(reply.reasoning[0].opaque)["details"] == [
        {"type": "reasoning.text", "index": 0, "text": "ab", "signature": "s"},
        sealed,
    ]


def test_a_signature_of_a_call_is_stored_with_the_index_of_the_call() -> None:
    signed = piece("read", "{}", index=1, extra_content={"google": {"thought_signature": "s"}})
    reply = chat(piece("read", "{}", index=0), signed)
    assert reply.reasoning == (
        Reasoning(
            "",
            "openai-chat",
            '{"host":"model.test","field":"extra_content","extras":{"1":{"google":{"thought_signature":"s"}}}}',
        ),
    )


@pytest.mark.parametrize(
    ("finish", "expected", "text"),
    [
        ("stop", Unavailable, "the model sent an empty reply"),
        ("length", Refused, "m reached its length limit before it wrote anything; raise model.longest"),
        ("content_filter", Refused, "m did not answer (content filter)"),
    ],
)
def test_an_empty_reply_is_an_error(finish: str, expected: type[Exception], text: str) -> None:
    with pytest.raises(expected) as caught:
        chat({"content": " \n"}, finish=finish)
    assert str(caught.value) == text


def test_separate_texts_of_one_reply_are_paragraphs() -> None:
    parser = wire_of("anthropic").parser(lambda _: None)
    blocks: list[object] = [{"type": "text", "text": "one"}, {"type": "tool_use", "name": "read", "input": {}}]
    parser.body(json.dumps({"content": [*blocks, {"type": "text", "text": "two"}]}).encode())
    assert parser.finish().build(7, "m", None).text == "one\n\ntwo"
