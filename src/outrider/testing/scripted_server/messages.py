"""Server side of Anthropic's Messages."""

from collections.abc import Iterator, Sequence
from typing import Any

from outrider.core.prompt import AssistantMessage, Message, Prompt, ToolMessage, UserMessage
from outrider.core.types import Reasoning
from outrider.testing.scripted_model import ScriptedCall, ScriptedReply, estimate_usage, pieces
from outrider.testing.scripted_server.wire_format import (
    Json,
    ParsedRequest,
    WireFormat,
    objects,
    parse_args,
    parse_call,
    parse_result,
    parse_tool,
    sse,
    text_of,
)

_STOPS = {"length": "max_tokens", "content_filter": "refusal"}


def parse(body: Json) -> Prompt:
    messages: list[Message] = []
    system = [text_of(body.get("system"))]
    for message in body["messages"]:
        content = message["content"]
        if message["role"] == "system":
            system.append(text_of(content))
            continue
        blocks: list[Json] = [{"type": "text", "text": content}] if isinstance(content, str) else objects(content)
        if message["role"] == "assistant":
            messages.append(_assistant_message(blocks))
            continue
        results = [block for block in blocks if block["type"] == "tool_result"]
        if results:
            answers = (parse_result(b["tool_use_id"], b.get("content"), b.get("is_error")) for b in results)
            messages.append(ToolMessage(tuple(answers)))
        words = text_of([block for block in blocks if block["type"] == "text"])
        if words or not results:
            messages.append(UserMessage(words))
    tools = [parse_tool(tool, "input_schema") for tool in objects(body.get("tools")) if "input_schema" in tool]
    return Prompt("\n\n".join(text for text in system if text), messages, tuple(tools))


def _assistant_message(blocks: Sequence[Json]) -> AssistantMessage:
    return AssistantMessage(
        text="".join(text_of(block["text"]) for block in blocks if block["type"] == "text"),
        calls=tuple(parse_call(b["id"], b["name"], b["input"]) for b in blocks if b["type"] == "tool_use"),
        reasoning=tuple(Reasoning(text_of(b["thinking"]), "anthropic") for b in blocks if b["type"] == "thinking"),
    )


def _input(call: ScriptedCall) -> Any:
    args, broken = parse_args(call.arguments())
    return broken or args


def _content(request: ParsedRequest, reply: ScriptedReply) -> list[Json]:
    content: list[Json] = []
    if reply.reasoning:
        content.append({"type": "thinking", "thinking": reply.reasoning, "signature": f"practice{request.id}"})
    if reply.text:
        content.append({"type": "text", "text": reply.text, "citations": None})
    for n, call in enumerate(reply.calls):
        content.append({"type": "tool_use", "id": f"toolu_{request.id}{n}", "name": call.tool, "input": _input(call)})
    return content


def _usage(request: ParsedRequest, reply: ScriptedReply) -> Json:
    usage = estimate_usage(reply, request.size)
    return {
        "input_tokens": max(0, usage.input - usage.cached - usage.written),
        "cache_creation_input_tokens": usage.written,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.output,
    }


def render(request: ParsedRequest, reply: ScriptedReply) -> Json:
    return {
        "id": f"msg_{request.id}",
        "type": "message",
        "role": "assistant",
        "model": request.model,
        "content": _content(request, reply),
        "stop_reason": _STOPS.get(reply.cut, reply.cut) or ("tool_use" if reply.calls else "end_turn"),
        "stop_sequence": None,
        "usage": _usage(request, reply),
    }


def render_stream(request: ParsedRequest, reply: ScriptedReply) -> Sequence[bytes]:
    def event(kind: str, **fields: object) -> bytes:
        return sse({"type": kind, **fields}, kind)

    whole = render(request, reply)
    usage = {**whole["usage"], "output_tokens": 1}
    frames = [event("message_start", message={**whole, "content": [], "stop_reason": None, "usage": usage})]
    calls = iter(reply.calls)
    for index, block in enumerate(whole["content"]):
        opening, deltas = _block(block, reply, calls)
        frames.append(event("content_block_start", index=index, content_block=opening))
        if index == 0:
            frames.append(event("ping"))
        frames += [event("content_block_delta", index=index, delta=delta) for delta in deltas]
        frames.append(event("content_block_stop", index=index))
    delta = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    frames.append(event("message_delta", delta=delta, usage=whole["usage"]))
    return [*frames, event("message_stop")]


def _block(block: Json, reply: ScriptedReply, calls: Iterator[ScriptedCall]) -> tuple[Json, list[Json]]:
    """The first form of a block in a stream, and the deltas that complete it."""
    match block["type"]:
        case "thinking":
            thoughts = [{"type": "thinking_delta", "thinking": piece} for piece in pieces(reply.reasoning, reply.chunk)]
            signature = {"type": "signature_delta", "signature": block["signature"]}
            return {"type": "thinking", "thinking": "", "signature": ""}, [*thoughts, signature]
        case "text":
            return {**block, "text": ""}, [
                {"type": "text_delta", "text": piece} for piece in pieces(reply.text, reply.chunk)
            ]
        case _:
            arguments = next(calls).arguments()
            parts = ["", *pieces("" if arguments == "{}" else arguments, reply.chunk)]
            return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": part} for part in parts]


_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}


def render_error(status: int, message: str) -> Json:
    kind = _TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_practice"}


def overflow(request: ParsedRequest) -> Json:
    return render_error(400, "prompt is too long: 200001 tokens > 200000 maximum")


WIRE = WireFormat(parse, render, render_stream, render_error, overflow)
