"""The server's side of OpenAI's chat completions."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from outrider.core.prompt import AssistantMessage, Message, Prompt, ToolMessage, UserMessage
from outrider.core.types import Call, Reasoning, ToolSpec
from outrider.models.scripted_reply import ScriptedReply, pieces
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
    thought = text_of(message.get("reasoning_content"))
    calls: list[Call] = []
    for wanted in objects(message.get("tool_calls")):
        function = wanted.get("function") or {"name": wanted["custom"]["name"], "arguments": "{}"}
        calls.append(parse_call(wanted["id"], function["name"], *parse_args(function["arguments"])))
    reasoning = (Reasoning(thought, "openai-chat"),) if thought else ()
    return AssistantMessage(text_of(message.get("content")), tuple(calls), reasoning)


def _tools(tools: list[Json]) -> Sequence[ToolSpec]:
    return [parse_tool(tool["function"], "parameters") for tool in tools if tool.get("type") == "function"]


def _calls(asked: ParsedRequest, says: ScriptedReply) -> list[Json]:
    return [
        {
            "id": f"call_{asked.id}{n}",
            "type": "function",
            "function": {"name": call.tool, "arguments": call.arguments()},
        }
        for n, call in enumerate(says.calls)
    ]


def _finish_reason(says: ScriptedReply) -> str:
    return says.cut or ("tool_calls" if says.calls else "stop")


def _usage(asked: ParsedRequest, says: ScriptedReply) -> Json:
    usage = usage_of(asked, says)
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": usage.written},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }


def render(asked: ParsedRequest, says: ScriptedReply) -> Json:
    message: Json = {"role": "assistant", "content": says.text or (None if says.calls else ""), "refusal": None}
    if says.reasoning:
        message["reasoning_content"] = says.reasoning
    if says.calls:
        message["tool_calls"] = _calls(asked, says)
    return {
        "id": f"chatcmpl-{asked.id}",
        "object": "chat.completion",
        "created": asked.created,
        "model": asked.model,
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": _finish_reason(says)}],
        "usage": _usage(asked, says),
    }


def render_stream(asked: ParsedRequest, says: ScriptedReply) -> Sequence[bytes]:
    has_usage = any(options.get("include_usage") for options in objects([asked.body.get("stream_options")]))
    head: Json = {
        "id": f"chatcmpl-{asked.id}",
        "object": "chat.completion.chunk",
        "created": asked.created,
        "model": asked.model,
    }
    if has_usage:
        head["usage"] = None

    def chunk(delta: Json, finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return sse({**head, "choices": [choice]})

    has_words = bool(says.text) or not says.calls
    frames = [chunk({"role": "assistant", "content": "" if has_words else None, "refusal": None})]
    frames += [chunk({"reasoning_content": piece}) for piece in pieces(says.reasoning, says.chunk)]
    frames += [chunk({"content": piece}) for piece in pieces(says.text, says.chunk)]
    for n, call in enumerate(_calls(asked, says)):
        written: str = call["function"]["arguments"]
        opening: dict[str, Any] = {**call, "index": n, "function": {"name": call["function"]["name"], "arguments": ""}}
        frames.append(chunk({"tool_calls": [opening]}))
        for piece in pieces(written, says.chunk):
            frames.append(chunk({"tool_calls": [{"index": n, "function": {"arguments": piece}}]}))
    frames.append(chunk({}, _finish_reason(says)))
    if has_usage:
        frames.append(sse({**head, "choices": [], "usage": _usage(asked, says)}))
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


def overflow(asked: ParsedRequest) -> Json:
    message = (
        "This model's maximum context length is 128000 tokens. However, your messages resulted in 128001 tokens. "
        "Please reduce the length of the messages."
    )
    kind = "invalid_request_error"
    return {"error": {"message": message, "type": kind, "param": "messages", "code": "context_length_exceeded"}}


WIRE = WireFormat(parse, render, render_stream, render_error, overflow)
