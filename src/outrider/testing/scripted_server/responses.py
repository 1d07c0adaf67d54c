"""The server's side of OpenAI's responses."""

from collections.abc import Sequence
from typing import Any

from outrider.core.events import Result
from outrider.core.prompt import AssistantMessage, Message, Prompt, ToolMessage, UserMessage
from outrider.core.types import Reasoning
from outrider.models.scripted_reply import ScriptedCall, ScriptedReply, pieces
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
    usage_of,
)

_INCOMPLETE_REASONS = {"length": "max_output_tokens"}


def items_of(body: Json) -> list[Json]:
    """The input as items, also when it is only words."""
    given = body.get("input")
    return [{"type": "message", "role": "user", "content": given}] if isinstance(given, str) else objects(given)


def parse(body: Json) -> Prompt:
    system = [text_of(body.get("instructions"))]
    messages: list[Message] = []
    for item in items_of(body):
        kind = item.get("type", "message")
        if kind in ("function_call_output", "custom_tool_call_output"):
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
        case "reasoning":
            thought = text_of(item.get("summary")) or text_of(item.get("content"))
            return AssistantMessage("", (), (Reasoning(thought, "openai-responses"),))
        case _:
            return None


def _add_part(messages: list[Message], part: AssistantMessage) -> None:
    """Neighbouring items of the model are one reply."""
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


def _output(asked: ParsedRequest, says: ScriptedReply) -> list[Json]:
    output: list[Json] = []
    if says.reasoning:
        thought: Json = {"id": f"rs_{asked.id}", "type": "reasoning", "status": "completed"}
        thought["summary"] = [{"type": "summary_text", "text": says.reasoning}]
        if "reasoning.encrypted_content" in str(asked.body.get("include")):
            thought["encrypted_content"] = f"practice{asked.id}"
        output.append(thought)
    if says.text:
        part: Json = {"type": "output_text", "annotations": [], "logprobs": [], "text": says.text}
        message = {"id": f"msg_{asked.id}", "type": "message", "status": "completed", "role": "assistant"}
        output.append({**message, "content": [part]})
    return [*output, *(_call(asked, n, wanted) for n, wanted in enumerate(says.calls))]


def _call(asked: ParsedRequest, n: int, wanted: ScriptedCall) -> Json:
    kind, prefix = ("custom_tool_call", "ctc") if wanted.custom else ("function_call", "fc")
    item: Json = {"id": f"{prefix}_{asked.id}{n}", "type": kind, "status": "completed"}
    item |= {"call_id": f"call_{asked.id}{n}", "name": wanted.tool}
    item["input" if wanted.custom else "arguments"] = wanted.arguments()
    if wanted.namespace:
        item["namespace"] = wanted.namespace
    return item


def render(asked: ParsedRequest, says: ScriptedReply) -> Json:
    usage = usage_of(asked, says)
    settings: Json = {
        "tools": asked.body.get("tools") or [],
        "tool_choice": asked.body.get("tool_choice") or "auto",
        "parallel_tool_calls": asked.body.get("parallel_tool_calls") is not False,
        "instructions": asked.body.get("instructions"),
        "previous_response_id": asked.body.get("previous_response_id"),
        "metadata": asked.body.get("metadata") or {},
        "temperature": asked.body.get("temperature", 1.0),
        "top_p": asked.body.get("top_p", 1.0),
        "max_output_tokens": asked.body.get("max_output_tokens"),
        "store": asked.body.get("store") is not False,
        "truncation": "disabled",
        "text": asked.body.get("text") or {"format": {"type": "text"}},
    }
    return {
        "id": f"resp_{asked.id}",
        "object": "response",
        "created_at": asked.created,
        "status": "incomplete" if says.cut else "completed",
        "error": None,
        "incomplete_details": {"reason": _INCOMPLETE_REASONS.get(says.cut, says.cut)} if says.cut else None,
        "model": asked.model,
        "output": _output(asked, says),
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
    """A stream being written: numbers its events."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []

    def add(self, kind: str, **fields: Any) -> None:
        self.frames.append(sse({"type": kind, "sequence_number": len(self.frames), **fields}, kind))


def _start_stream(asked: ParsedRequest, says: ScriptedReply) -> tuple[_Frames, Json]:
    whole = render(asked, says)
    bare: Json = {**whole, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    out = _Frames()
    out.add("response.created", response=bare)
    out.add("response.in_progress", response=bare)
    return out, whole


def render_stream(asked: ParsedRequest, says: ScriptedReply) -> Sequence[bytes]:
    out, whole = _start_stream(asked, says)
    for index, item in enumerate(whole["output"]):
        opening, at = {**item, "status": "in_progress"}, {"item_id": item["id"], "output_index": index}
        match item["type"]:
            case "reasoning":
                out.add("response.output_item.added", output_index=index, item={**opening, "summary": []})
                _add_reasoning(out, at, says)
            case "message":
                out.add("response.output_item.added", output_index=index, item={**opening, "content": []})
                _add_text(out, at, item["content"][0], says)
            case kind:
                field, event = _FIELDS[kind]
                out.add("response.output_item.added", output_index=index, item={**opening, field: ""})
                for piece in pieces(item[field], says.chunk):
                    out.add(f"response.{event}.delta", **at, delta=piece)
                out.add(f"response.{event}.done", **at, **{field: item[field]})
        out.add("response.output_item.done", output_index=index, item=item)
    out.add(f"response.{whole['status']}", response=whole)
    return out.frames


_FIELDS = {
    "function_call": ("arguments", "function_call_arguments"),
    "custom_tool_call": ("input", "custom_tool_call_input"),
}


def _add_reasoning(out: _Frames, at: Json, says: ScriptedReply) -> None:
    event, where = "response.reasoning_summary", {**at, "summary_index": 0}
    out.add(f"{event}_part.added", **where, part={"type": "summary_text", "text": ""})
    for piece in pieces(says.reasoning, says.chunk):
        out.add(f"{event}_text.delta", **where, delta=piece)
    out.add(f"{event}_text.done", **where, text=says.reasoning)
    out.add(f"{event}_part.done", **where, part={"type": "summary_text", "text": says.reasoning})


def _add_text(out: _Frames, at: Json, part: Json, says: ScriptedReply) -> None:
    where = {**at, "content_index": 0}
    out.add("response.content_part.added", **where, part={**part, "text": ""})
    for piece in pieces(says.text, says.chunk):
        out.add("response.output_text.delta", **where, delta=piece, logprobs=[])
    out.add("response.output_text.done", **where, text=says.text, logprobs=[])
    out.add("response.content_part.done", **where, part=part)


def overflow(asked: ParsedRequest) -> Json | bytes:
    """A streamed response fails in its stream; one asked for whole is refused."""
    message = "Your input exceeds the context window of this model. Please adjust your input and try again."
    error = {"code": "context_length_exceeded", "message": message}
    if not asked.stream:
        return {"error": {**error, "type": "invalid_request_error", "param": "input"}}
    out, whole = _start_stream(asked, ScriptedReply())
    out.add("response.failed", response={**whole, "status": "failed", "error": error, "output": [], "usage": None})
    return b"".join(out.frames)


WIRE = WireFormat(parse, render, render_stream, chat.render_error, overflow)
