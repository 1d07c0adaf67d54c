"""Server side of Google's Gemini API: `generateContent` and `streamGenerateContent`.

It is lenient: calls without ids are matched to their results by name and order, and unknown parts are ignored.
"""

import re
from collections.abc import Sequence
from typing import Any, cast

from outrider.core.events import Result
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
    parse_tool,
    sse,
    text_of,
)

_PATH = re.compile(r"/v1(?:beta)?/models/(?P<model>[^/:]+):(?P<method>generateContent|streamGenerateContent)")


def is_path(path: str) -> bool:
    return _PATH.fullmatch(path) is not None


def with_path_fields(body: Json, path: str) -> Json:
    """The body with the two fields that this API has in the path: `model` and `stream`."""
    match = _PATH.fullmatch(path)
    if match is None:
        raise ValueError(f"{path} is not a path of this API")
    return {**body, "model": match["model"], "stream": match["method"] == "streamGenerateContent"}


def parse(body: Json) -> Prompt:
    messages: list[Message] = []
    unanswered: list[Call] = []
    for content in objects(body["contents"]):
        parts = objects(content.get("parts"))
        if content.get("role") == "model":
            reply = _assistant_message(parts, len(messages))
            unanswered += reply.calls
            before = messages[-1] if messages else None
            if isinstance(before, AssistantMessage):
                # A program may keep each piece of a stream as a message of its own.
                messages[-1] = AssistantMessage(
                    before.text + reply.text, before.calls + reply.calls, before.reasoning + reply.reasoning
                )
            else:
                messages.append(reply)
            continue
        responses = _fields(parts, "functionResponse")
        results = [result for one in responses if (result := _result(one, unanswered))]
        if results:
            messages.append(ToolMessage(tuple(results)))
        words = text_of(parts)
        if words or not responses:
            messages.append(UserMessage(words))
    system = objects([body.get("systemInstruction")])
    return Prompt(text_of(system[0].get("parts")) if system else "", messages, tuple(_tools(body)))


def _assistant_message(parts: Sequence[Json], index: int) -> AssistantMessage:
    calls = [
        parse_call(call.get("id") or f"{index}.{n}", call["name"], call.get("args") or {})
        for n, call in enumerate(_fields(parts, "functionCall"))
    ]
    thoughts = [part for part in parts if part.get("thought") is True]
    return AssistantMessage(
        text="".join(str(part["text"]) for part in parts if "text" in part and part not in thoughts),
        calls=tuple(calls),
        reasoning=tuple(Reasoning(text_of([part]), "google") for part in thoughts),
    )


def _result(response: Json, unanswered: list[Call]) -> Result | None:
    """The result of a call, which is taken off the list; None for one that answers nothing.

    A program that loads an earlier session may have lost the ids of its calls.
    """
    ids = [call for call in unanswered if call.id == response.get("id")]
    names = [call for call in unanswered if call.tool == response.get("name")]
    if not (ids or names):
        return None
    call = (ids or names)[0]
    unanswered.remove(call)
    output = cast("object", response.get("response"))
    values = cast("dict[str, object]", output) if isinstance(output, dict) else {}
    return Result(call.id, "\n".join(str(value) for value in values.values()), failed="error" in values)


def _fields(parts: Sequence[Json], name: str) -> list[Json]:
    return objects([part[name] for part in parts if name in part])


def _tools(body: Json) -> Sequence[ToolSpec]:
    tools = [one for tool in objects(body.get("tools")) for one in objects(tool.get("functionDeclarations"))]
    return [
        parse_tool(tool, "parametersJsonSchema" if "parametersJsonSchema" in tool else "parameters") for tool in tools
    ]


def _call_parts(request: ParsedRequest, reply: ScriptedReply) -> list[Json]:
    parts: list[Json] = []
    for n, call in enumerate(reply.calls):
        # Arguments are an object in this API, so broken ones cannot be sent.
        args, _ = parse_args(call.arguments())
        parts.append({"functionCall": {"id": f"call_{request.id}{n}", "name": call.tool, "args": args}})
    return parts


def _usage(request: ParsedRequest, reply: ScriptedReply) -> Json:
    usage = estimate_usage(reply, request.size)
    return {
        "promptTokenCount": usage.input,
        "cachedContentTokenCount": usage.cached,
        "candidatesTokenCount": usage.output - usage.reasoning,
        "thoughtsTokenCount": usage.reasoning,
        "totalTokenCount": usage.input + usage.output,
    }


def _response(request: ParsedRequest, parts: Sequence[Json], **more: Any) -> Json:
    last = {name: more.pop(name) for name in ("finishReason",) if name in more}
    candidate = {"content": {"role": "model", "parts": parts}, "index": 0, **last}
    return {"candidates": [candidate], "modelVersion": request.model, "responseId": f"resp_{request.id}", **more}


def _finish(request: ParsedRequest, reply: ScriptedReply) -> dict[str, Any]:
    reasons = {"length": "MAX_TOKENS", "content_filter": "SAFETY"}
    return {"finishReason": reasons.get(reply.cut, "STOP"), "usageMetadata": _usage(request, reply)}


def render(request: ParsedRequest, reply: ScriptedReply) -> Json:
    thoughts: list[Json] = [{"text": reply.reasoning, "thought": True}] if reply.reasoning else []
    words: list[Json] = [{"text": reply.text}] if reply.text else []
    parts = [*thoughts, *words, *_call_parts(request, reply)]
    return _response(request, parts, **_finish(request, reply))


def render_stream(request: ParsedRequest, reply: ScriptedReply) -> Sequence[bytes]:
    parts: list[Json] = [{"text": piece, "thought": True} for piece in pieces(reply.reasoning, reply.chunk)]
    parts += [{"text": piece} for piece in pieces(reply.text, reply.chunk)]
    parts += _call_parts(request, reply)
    frames = [sse(_response(request, [part])) for part in parts]
    return [*frames, sse(_response(request, [{"text": ""}], **_finish(request, reply)))]


_STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
}


def render_error(status: int, message: str) -> Json:
    return {"error": {"code": status, "message": message, "status": _STATUSES.get(status, "UNKNOWN")}}


def overflow(request: ParsedRequest) -> Json:
    return render_error(400, "The input token count (1048577) exceeds the maximum number of tokens allowed (1048576).")


WIRE = WireFormat(parse, render, render_stream, render_error, overflow)
