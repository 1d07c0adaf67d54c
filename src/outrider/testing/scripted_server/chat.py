"""Server side of OpenAI's Chat Completions."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from outrider.core.prompt import AssistantMessage, Message, Prompt, ToolMessage, UserMessage
from outrider.core.types import Call, Reasoning, ToolSpec
from outrider.testing.scripted_model import ScriptedReply, estimate_usage, pieces
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


def parse(body: Json) -> Prompt:
    system: list[str] = []
    messages: list[Message] = []
    for is_tool, group in groupby(body["messages"], lambda message: message["role"] == "tool"):
        if is_tool:
            messages.append(ToolMessage(tuple(parse_result(m["tool_call_id"], m.get("content")) for m in group)))
            continue
        for message in group:
            match message["role"]:
                case "system" | "developer":
                    system.append(text_of(message.get("content")))
                case "assistant":
                    messages.append(_assistant_message(message))
                case _:
                    messages.append(UserMessage(text_of(message.get("content"))))
    return Prompt("\n\n".join(system), messages, tuple(_tools(objects(body.get("tools")))))


def _assistant_message(message: Json) -> AssistantMessage:
    reasoning_text = text_of(message.get("reasoning_content"))
    calls: list[Call] = []
    for call in objects(message.get("tool_calls")):
        function = call.get("function") or {"name": call["custom"]["name"], "arguments": "{}"}
        calls.append(parse_call(call["id"], function["name"], *parse_args(function["arguments"])))
    reasoning = (Reasoning(reasoning_text, "openai-chat"),) if reasoning_text else ()
    return AssistantMessage(text_of(message.get("content")), tuple(calls), reasoning)


def _tools(tools: list[Json]) -> Sequence[ToolSpec]:
    return [parse_tool(tool["function"], "parameters") for tool in tools if tool.get("type") == "function"]


def _calls(request: ParsedRequest, reply: ScriptedReply) -> list[Json]:
    return [
        {
            "id": f"call_{request.id}{n}",
            "type": "function",
            "function": {"name": call.tool, "arguments": call.arguments()},
        }
        for n, call in enumerate(reply.calls)
    ]


def _finish_reason(reply: ScriptedReply) -> str:
    return reply.cut or ("tool_calls" if reply.calls else "stop")


def _usage(request: ParsedRequest, reply: ScriptedReply) -> Json:
    usage = estimate_usage(reply, request.size)
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": usage.written},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }


def render(request: ParsedRequest, reply: ScriptedReply) -> Json:
    message: Json = {"role": "assistant", "content": reply.text or (None if reply.calls else ""), "refusal": None}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.calls:
        message["tool_calls"] = _calls(request, reply)
    return {
        "id": f"chatcmpl-{request.id}",
        "object": "chat.completion",
        "created": request.created,
        "model": request.model,
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": _finish_reason(reply)}],
        "usage": _usage(request, reply),
    }


def render_stream(request: ParsedRequest, reply: ScriptedReply) -> Sequence[bytes]:
    has_usage = any(options.get("include_usage") for options in objects([request.body.get("stream_options")]))
    head: Json = {
        "id": f"chatcmpl-{request.id}",
        "object": "chat.completion.chunk",
        "created": request.created,
        "model": request.model,
    }
    if has_usage:
        head["usage"] = None

    def chunk(delta: Json, finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return sse({**head, "choices": [choice]})

    has_words = bool(reply.text) or not reply.calls
    frames = [chunk({"role": "assistant", "content": "" if has_words else None, "refusal": None})]
    frames += [chunk({"reasoning_content": piece}) for piece in pieces(reply.reasoning, reply.chunk)]
    frames += [chunk({"content": piece}) for piece in pieces(reply.text, reply.chunk)]
    for n, call in enumerate(_calls(request, reply)):
        arguments: str = call["function"]["arguments"]
        opening: dict[str, Any] = {**call, "index": n, "function": {"name": call["function"]["name"], "arguments": ""}}
        frames.append(chunk({"tool_calls": [opening]}))
        for piece in pieces(arguments, reply.chunk):
            frames.append(chunk({"tool_calls": [{"index": n, "function": {"arguments": piece}}]}))
    frames.append(chunk({}, _finish_reason(reply)))
    if has_usage:
        frames.append(sse({**head, "choices": [], "usage": _usage(request, reply)}))
    return [*frames, sse("[DONE]")]


_TYPES = {
    401: ("invalid_request_error", "invalid_api_key"),
    403: ("invalid_request_error", "permission_denied"),
    404: ("invalid_request_error", "model_not_found"),
    429: ("requests", "rate_limit_exceeded"),
}


def render_error(status: int, message: str) -> Json:
    kind, code = _TYPES.get(status, ("server_error" if status >= 500 else "invalid_request_error", None))
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def overflow(request: ParsedRequest) -> Json:
    message = (
        "This model's maximum context length is 128000 tokens. However, your messages resulted in 128001 tokens. "
        "Please reduce the length of the messages."
    )
    kind = "invalid_request_error"
    return {"error": {"message": message, "type": kind, "param": "messages", "code": "context_length_exceeded"}}


WIRE = WireFormat(parse, render, render_stream, render_error, overflow)
