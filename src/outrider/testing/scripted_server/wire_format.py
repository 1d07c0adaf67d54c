"""What a wire format of the scripted server consists of, and the parsing and rendering that all share."""

from collections.abc import Callable, Sequence
from typing import Any, cast
from uuid import uuid4

import msgspec
from msgspec import Struct

from outrider.core.events import Result
from outrider.core.prompt import Prompt
from outrider.core.types import Call, ToolSpec
from outrider.testing.scripted_model import ScriptedReply

Json = dict[str, Any]


class ParsedRequest(Struct, frozen=True):
    model: str
    prompt: Prompt
    stream: bool
    body: Json
    """The JSON body, for the fields of this wire only."""
    size: int
    """Bytes of the body."""
    id: str
    """Part of every id in the response."""
    created: int
    """Seconds since 1970."""


class WireFormat(Struct, frozen=True):
    parse: Callable[[Json], Prompt]
    """Raises LookupError, TypeError or ValueError for a malformed body."""
    render: Callable[[ParsedRequest, ScriptedReply], Json]
    render_stream: Callable[[ParsedRequest, ScriptedReply], Sequence[bytes]]
    render_error: Callable[[int, str], Json]
    overflow: Callable[[ParsedRequest], Json | bytes]
    """The body of a 400 response, or a stream that fails."""


def new_id() -> str:
    return uuid4().hex


def sse(data: Json | str, event: str = "") -> bytes:
    """One server-sent event."""
    content = data.encode() if isinstance(data, str) else msgspec.json.encode(data)
    return (b"event: " + event.encode() + b"\n" if event else b"") + b"data: " + content + b"\n\n"


def split_frames(frames: Sequence[bytes]) -> tuple[bytes, bytes]:
    """A response in two halves. Counts events, not bytes: some wires repeat the request in the first and last event."""
    if len(frames) == 1:
        return frames[0][: len(frames[0]) // 2], frames[0][len(frames[0]) // 2 :]
    half = len(frames) // 2
    return b"".join(frames[:half]), b"".join(frames[half:])


def text_of(content: object) -> str:
    """The text of a message's content, which is a string or a list of parts."""
    if isinstance(content, str):
        return content
    return "\n".join(str(part["text"]) for part in objects(content) if "text" in part)


def objects(value: object) -> list[Json]:
    """The objects in a list; nothing for any other value."""
    parts = cast("list[object]", value) if isinstance(value, list) else []
    return [cast("Json", part) for part in parts if isinstance(part, dict)]


def parse_call(id: object, tool: object, args: object, broken: str = "") -> Call:
    if isinstance(id, str) and isinstance(tool, str) and isinstance(args, dict):
        return Call(id, tool, cast("dict[str, object]", args), broken)
    raise TypeError("a call needs an id, a name and an object of arguments")


def parse_result(call: object, content: object, failed: object = False) -> Result:
    if isinstance(call, str):
        return Result(call, text_of(content), failed=failed is True)
    raise TypeError("a result needs the id of its call")


def parse_tool(tool: Json, schema: str) -> ToolSpec:
    name, description, parameters = tool.get("name"), tool.get("description"), tool.get(schema)
    if isinstance(name, str):
        fields = cast("dict[str, object]", parameters) if isinstance(parameters, dict) else {}
        return ToolSpec(name, description if isinstance(description, str) else "", fields)
    raise TypeError("a tool needs a name")


def parse_args(text: object) -> tuple[dict[str, object], str]:
    """`(arguments, "")`, or `({}, text)` where the text is not a JSON object."""
    if not isinstance(text, str):
        raise TypeError("the arguments of a call must be a string")
    try:
        return msgspec.json.decode(text or "{}", type=dict[str, object]), ""
    except msgspec.DecodeError:
        return {}, text
