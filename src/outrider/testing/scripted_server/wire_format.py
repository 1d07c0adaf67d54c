"""What the scripted server needs of a wire format: requests into our words, replies into its bytes."""

from collections.abc import Callable, Sequence
from typing import Any, cast
from uuid import uuid4

import msgspec
from msgspec import Struct

from outrider.core.events import Result
from outrider.core.prompt import Prompt
from outrider.core.types import Call, ToolSpec, Usage
from outrider.models.scripted_reply import ScriptedReply, estimate_tokens

Json = dict[str, Any]


class ParsedRequest(Struct, frozen=True):
    """One request, understood."""

    model: str
    prompt: Prompt
    stream: bool
    body: Json
    """As it came, for the fields that only this wire knows."""
    size: int
    """Bytes of the request."""
    id: str
    """The same in every id of the answer."""
    created: int
    """Seconds since 1970."""


class WireFormat(Struct, frozen=True):
    parse: Callable[[Json], Prompt]
    """Raises LookupError, TypeError or ValueError on a body that is none of this wire's."""
    render: Callable[[ParsedRequest, ScriptedReply], Json]
    render_stream: Callable[[ParsedRequest, ScriptedReply], Sequence[bytes]]
    render_error: Callable[[int, str], Json]
    overflow: Callable[[ParsedRequest], Json | bytes]
    """The body of a 400, or a stream."""


def new_id() -> str:
    return uuid4().hex


def sse(data: Json | str, event: str = "") -> bytes:
    """One server-sent event."""
    content = data.encode() if isinstance(data, str) else msgspec.json.encode(data)
    return (b"event: " + event.encode() + b"\n" if event else b"") + b"data: " + content + b"\n\n"


def split_frames(frames: Sequence[bytes]) -> tuple[bytes, bytes]:
    """A reply in two: by events, for some wires repeat the whole request in the first one and the last."""
    if len(frames) == 1:
        return frames[0][: len(frames[0]) // 2], frames[0][len(frames[0]) // 2 :]
    half = len(frames) // 2
    return b"".join(frames[:half]), b"".join(frames[half:])


def usage_of(asked: ParsedRequest, says: ScriptedReply) -> Usage:
    """As the script gives it, or by the rough count of the bytes that went over the wire."""
    if says.usage is not None:
        return says.usage
    thought = estimate_tokens(len(says.reasoning))
    said = estimate_tokens(len(says.text) + sum(len(call.tool) + len(call.arguments()) for call in says.calls))
    return Usage(input=estimate_tokens(asked.size), output=said + thought, reasoning=thought)


def text_of(content: object) -> str:
    """The words of a message's content, which every wire gives as a string or as parts."""
    if isinstance(content, str):
        return content
    return "\n".join(str(part["text"]) for part in objects(content) if "text" in part)


def objects(value: object) -> list[Json]:
    """The objects of a list, or none where something else stands."""
    parts = cast("list[object]", value) if isinstance(value, list) else []
    return [cast("Json", part) for part in parts if isinstance(part, dict)]


def parse_call(id: object, tool: object, args: object, broken: str = "") -> Call:
    if isinstance(id, str) and isinstance(tool, str) and isinstance(args, dict):
        return Call(id, tool, cast("dict[str, object]", args), broken)
    raise TypeError("a call has an id, a name and an object of arguments")


def parse_result(call: object, content: object, failed: object = False) -> Result:
    if isinstance(call, str):
        return Result(call, text_of(content), failed=failed is True)
    raise TypeError("a result names its call")


def parse_tool(tool: Json, schema: str) -> ToolSpec:
    name, description, parameters = tool.get("name"), tool.get("description"), tool.get(schema)
    if isinstance(name, str):
        fields = cast("dict[str, object]", parameters) if isinstance(parameters, dict) else {}
        return ToolSpec(name, description if isinstance(description, str) else "", fields)
    raise TypeError("a tool has a name")


def parse_args(text: object) -> tuple[dict[str, object], str]:
    """The arguments of a call, or what stands in their place."""
    if not isinstance(text, str):
        raise TypeError("the arguments of a call are written as a string")
    try:
        return msgspec.json.decode(text or "{}", type=dict[str, object]), ""
    except msgspec.DecodeError:
        return {}, text
