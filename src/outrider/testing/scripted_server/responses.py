"""Server side of OpenAI's Responses."""

from collections.abc import Sequence
from typing import Any

from outrider.core.events import Result
from outrider.core.prompt import AssistantMessage, Message, Prompt, ToolMessage, UserMessage
from outrider.core.types import Reasoning
from outrider.testing.scripted_model import ScriptedCall, ScriptedReply, estimate_usage, pieces
from outrider.testing.scripted_server import chat
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

_INCOMPLETE_REASONS = {"length": "max_output_tokens"}
_TOOL_SEARCH = "tool_search"
"""A tool that finds others: its own type of tool, call and output, with arguments that are an object."""


def items_of(body: Json) -> list[Json]:
    """The input as items; a plain text is one message."""
    content = body.get("input")
    return [{"type": "message", "role": "user", "content": content}] if isinstance(content, str) else objects(content)


def parse(body: Json) -> Prompt:
    system = [text_of(body.get("instructions"))]
    messages: list[Message] = []
    for item in items_of(body):
        kind = item.get("type", "message")
        if kind in ("function_call_output", "custom_tool_call_output", "tool_search_output"):
            _add_result(messages, parse_result(item["call_id"], item.get("output")))
        elif kind == "message" and item["role"] in ("system", "developer"):
            system.append(text_of(item["content"]))
        elif kind == "message" and item["role"] == "user":
            messages.append(UserMessage(text_of(item["content"])))
        elif (part := _assistant_part(kind, item)) is not None:
            _add_part(messages, part)
    tools = [tool for tool in objects(body.get("tools")) if tool.get("type") in ("function", "custom")]
    specs = tuple(parse_tool(tool, "parameters") for tool in tools)
    return Prompt("\n\n".join(text for text in system if text), messages, specs)


def _assistant_part(kind: str, item: Json) -> AssistantMessage | None:
    match kind:
        case "message":
            return AssistantMessage(text_of(item["content"]))
        case "function_call":
            return AssistantMessage("", (parse_call(item["call_id"], item["name"], *parse_args(item["arguments"])),))
        case "custom_tool_call":
            return AssistantMessage("", (parse_call(item["call_id"], item["name"], {"input": item["input"]}),))
        case "tool_search_call":
            return AssistantMessage("", (parse_call(item["call_id"], _TOOL_SEARCH, item["arguments"]),))
        case "reasoning":
            thought = text_of(item.get("summary")) or text_of(item.get("content"))
            return AssistantMessage("", (), (Reasoning(thought, "openai-responses"),))
        case _:
            return None


def _add_part(messages: list[Message], part: AssistantMessage) -> None:
    """Adjacent items of the model are one reply."""
    last = messages[-1] if messages else None
    if isinstance(last, AssistantMessage):
        messages[-1] = AssistantMessage(last.text + part.text, last.calls + part.calls, last.reasoning + part.reasoning)
    else:
        messages.append(part)


def _add_result(messages: list[Message], result: Result) -> None:
    last = messages[-1] if messages else None
    if isinstance(last, ToolMessage):
        messages[-1] = ToolMessage((*last.results, result))
    else:
        messages.append(ToolMessage((result,)))


def _output(request: ParsedRequest, reply: ScriptedReply) -> list[Json]:
    output: list[Json] = []
    if reply.reasoning:
        thought: Json = {"id": f"rs_{request.id}", "type": "reasoning", "status": "completed"}
        thought["summary"] = [{"type": "summary_text", "text": reply.reasoning}]
        if "reasoning.encrypted_content" in str(request.body.get("include")):
            thought["encrypted_content"] = f"practice{request.id}"
        output.append(thought)
    if reply.text:
        part: Json = {"type": "output_text", "annotations": [], "logprobs": [], "text": reply.text}
        message = {"id": f"msg_{request.id}", "type": "message", "status": "completed", "role": "assistant"}
        output.append({**message, "content": [part]})
    return [*output, *(_call(request, n, call) for n, call in enumerate(reply.calls))]


def _call(request: ParsedRequest, n: int, call: ScriptedCall) -> Json:
    if call.tool == _TOOL_SEARCH and any(
        tool.get("type") == _TOOL_SEARCH for tool in objects(request.body.get("tools"))
    ):
        searched: Json = {"id": f"ts_{request.id}{n}", "type": "tool_search_call", "status": "completed"}
        return {**searched, "call_id": f"call_{request.id}{n}", "execution": "client", "arguments": call.args}
    kind, prefix = ("custom_tool_call", "ctc") if call.custom else ("function_call", "fc")
    item: Json = {"id": f"{prefix}_{request.id}{n}", "type": kind, "status": "completed"}
    item |= {"call_id": f"call_{request.id}{n}", "name": call.tool}
    item["input" if call.custom else "arguments"] = call.arguments()
    if call.namespace:
        item["namespace"] = call.namespace
    return item


def render(request: ParsedRequest, reply: ScriptedReply) -> Json:
    usage = estimate_usage(reply, request.size)
    settings: Json = {
        "tools": request.body.get("tools") or [],
        "tool_choice": request.body.get("tool_choice") or "auto",
        "parallel_tool_calls": request.body.get("parallel_tool_calls") is not False,
        "instructions": request.body.get("instructions"),
        "previous_response_id": request.body.get("previous_response_id"),
        "metadata": request.body.get("metadata") or {},
        "temperature": request.body.get("temperature", 1.0),
        "top_p": request.body.get("top_p", 1.0),
        "max_output_tokens": request.body.get("max_output_tokens"),
        "store": request.body.get("store") is not False,
        "truncation": "disabled",
        "text": request.body.get("text") or {"format": {"type": "text"}},
    }
    return {
        "id": f"resp_{request.id}",
        "object": "response",
        "created_at": request.created,
        "status": "incomplete" if reply.cut else "completed",
        "error": None,
        "incomplete_details": {"reason": _INCOMPLETE_REASONS.get(reply.cut, reply.cut)} if reply.cut else None,
        "model": request.model,
        "output": _output(request, reply),
        **settings,
        "usage": {
            "input_tokens": usage.input,
            "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": usage.written},
            "output_tokens": usage.output,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning},
            "total_tokens": usage.input + usage.output,
        },
    }


class _Frames:
    """The events of a stream, numbered."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []

    def add(self, kind: str, **fields: Any) -> None:
        self.frames.append(sse({"type": kind, "sequence_number": len(self.frames), **fields}, kind))


def _start_stream(request: ParsedRequest, reply: ScriptedReply) -> tuple[_Frames, Json]:
    whole = render(request, reply)
    bare: Json = {**whole, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    out = _Frames()
    out.add("response.created", response=bare)
    out.add("response.in_progress", response=bare)
    return out, whole


def render_stream(request: ParsedRequest, reply: ScriptedReply) -> Sequence[bytes]:
    out, whole = _start_stream(request, reply)
    for index, item in enumerate(whole["output"]):
        opening, at = {**item, "status": "in_progress"}, {"item_id": item["id"], "output_index": index}
        match item["type"]:
            case "reasoning":
                out.add("response.output_item.added", output_index=index, item={**opening, "summary": []})
                _add_reasoning(out, at, reply)
            case "message":
                out.add("response.output_item.added", output_index=index, item={**opening, "content": []})
                _add_text(out, at, item["content"][0], reply)
            case "tool_search_call":
                out.add("response.output_item.added", output_index=index, item=opening)
            case kind:
                field, event = _FIELDS[kind]
                out.add("response.output_item.added", output_index=index, item={**opening, field: ""})
                for piece in pieces(item[field], reply.chunk):
                    out.add(f"response.{event}.delta", **at, delta=piece)
                out.add(f"response.{event}.done", **at, **{field: item[field]})
        out.add("response.output_item.done", output_index=index, item=item)
    out.add(f"response.{whole['status']}", response=whole)
    return out.frames


_FIELDS = {
    "function_call": ("arguments", "function_call_arguments"),
    "custom_tool_call": ("input", "custom_tool_call_input"),
}


def _add_reasoning(out: _Frames, at: Json, reply: ScriptedReply) -> None:
    event, where = "response.reasoning_summary", {**at, "summary_index": 0}
    out.add(f"{event}_part.added", **where, part={"type": "summary_text", "text": ""})
    for piece in pieces(reply.reasoning, reply.chunk):
        out.add(f"{event}_text.delta", **where, delta=piece)
    out.add(f"{event}_text.done", **where, text=reply.reasoning)
    out.add(f"{event}_part.done", **where, part={"type": "summary_text", "text": reply.reasoning})


def _add_text(out: _Frames, at: Json, part: Json, reply: ScriptedReply) -> None:
    where = {**at, "content_index": 0}
    out.add("response.content_part.added", **where, part={**part, "text": ""})
    for piece in pieces(reply.text, reply.chunk):
        out.add("response.output_text.delta", **where, delta=piece, logprobs=[])
    out.add("response.output_text.done", **where, text=reply.text, logprobs=[])
    out.add("response.content_part.done", **where, part=part)


def overflow(request: ParsedRequest) -> Json | bytes:
    """A streamed response fails in its stream; one request for whole is refused."""
    message = "Your input exceeds the context window of this model. Please adjust your input and try again."
    error = {"code": "context_length_exceeded", "message": message}
    if not request.stream:
        return {"error": {**error, "type": "invalid_request_error", "param": "input"}}
    out, whole = _start_stream(request, ScriptedReply())
    out.add("response.failed", response={**whole, "status": "failed", "error": error, "output": [], "usage": None})
    return b"".join(out.frames)


WIRE = WireFormat(parse, render, render_stream, chat.render_error, overflow)
