"""Typed functions as tools: the signature becomes the schema, the docstring the description."""

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from inspect import Parameter
from typing import Any, TypeVar, cast, overload

import anyio.to_thread
import msgspec
from anyio import CapacityLimiter
from anyio.lowlevel import RunVar
from msgspec import Struct
from msgspec.structs import replace

from outrider.core.approvals import ApprovalRequest
from outrider.core.errors import Refused, Unavailable
from outrider.core.events import Result
from outrider.core.ports import ToolContext
from outrider.core.store_port import Blobs
from outrider.core.text import explain_validation, head_and_tail, replace_lone_surrogates
from outrider.core.types import Call, Image, Replay, ToolSpec

MAX_RESULT_CHARS = 30_000
"""Characters of the text of any result."""
_HINT = "ask for a smaller part to see it"


def bounded(text: str, blobs: Blobs, head: int = 20_000, tail: int = 8_000, hint: str = _HINT) -> tuple[str, str]:
    """The text, or its head and tail with a line between that says what is missing; and the blob that holds it all.

    The blob is empty when nothing was cut. `hint` tells the model how to get the rest.
    """
    text = replace_lone_surrogates(text)
    if len(text) <= head + tail:
        return text, ""
    return head_and_tail(text, head, tail, hint), blobs.put(text.encode())


__all__ = ["DefinedTool", "Replay", "Result", "ToolContext", "bounded", "in_thread", "result", "tool"]
ToolReturn = str | Result | None
ToolFunction = Callable[..., ToolReturn] | Callable[..., Awaitable[ToolReturn]]
ApprovalFunction = Callable[..., Awaitable[ApprovalRequest | None]]
T = TypeVar("T")
THREADS = 8


# One per event loop, since a limiter belongs to its loop.
_threads: RunVar[CapacityLimiter] = RunVar("outrider_tool_threads")


def result(text: str, details: str = "", failed: bool = False, images: tuple[Image, ...] = ()) -> Result:
    """A tool's result with more than text: a line for people, a failure, images."""
    return Result("", text, failed, images, details=details)


async def in_thread(work: Callable[[], T]) -> T:
    """Run blocking work in one of a few threads for tools. It cannot be cancelled, so bound it."""
    try:
        limiter = _threads.get()
    except LookupError:
        limiter = CapacityLimiter(THREADS)
        _threads.set(limiter)
    return await anyio.to_thread.run_sync(work, limiter=limiter)


class DefinedTool:
    """A tool made from a function."""

    def __init__(self, function: ToolFunction, replay: Replay, name: str) -> None:
        description, notes = _read_docstring(function)
        self._function = function
        self._reconcile: ToolFunction | None = None
        self._approval_function: ApprovalFunction | None = None
        self._takes_context = _takes_context(function)
        self._struct_parameter = _struct_parameter(function)
        self._arguments = _arguments(function, name)
        self.spec = ToolSpec(name, description, _schema(self._arguments, notes), replay)

    def reconciles(self, function: ToolFunction) -> ToolFunction:
        """Decorate the function that finds out, from the same arguments, what happened to a call after a crash.

        It returns what the tool would have returned, or None when that cannot be known.
        """
        self._reconcile = function
        return function

    def requests_approval(self, function: ApprovalFunction) -> ApprovalFunction:
        """Decorate the function that says, from the same arguments, what a call needs beyond what every call may do.

        It changes nothing. A person is asked before the call runs, unless a rule or a permission decides.
        """
        self._approval_function = function
        return function

    async def approval_request(self, call: Call, context: ToolContext) -> ApprovalRequest | None:
        return await self._approval_function(context, **self._parse(call)) if self._approval_function else None

    async def run(self, call: Call, context: ToolContext) -> Result:
        outcome = await self._call(self._function, call, context)
        return outcome or Result(call.id, "done")

    async def reconcile(self, call: Call, context: ToolContext) -> Result | None:
        return await self._call(self._reconcile, call, context) if self._reconcile else None

    async def _call(self, function: ToolFunction, call: Call, context: ToolContext) -> Result | None:
        try:
            arguments = self._parse(call)
            first = (context,) if self._takes_context else ()
            if inspect.iscoroutinefunction(function):
                outcome = await function(*first, **arguments)
            else:
                outcome = await in_thread(partial(cast("Callable[..., ToolReturn]", function), *first, **arguments))
        except (Refused, Unavailable, OSError) as error:
            outcome = result(str(error), failed=True)
        if outcome is None:
            return None
        finished = outcome if isinstance(outcome, Result) else result(outcome)
        if len(finished.text) > MAX_RESULT_CHARS:
            return await in_thread(partial(_shorten, replace(finished, call=call.id), context.blobs))
        return replace(
            finished,
            call=call.id,
            text=replace_lone_surrogates(finished.text),
            details=replace_lone_surrogates(finished.details),
        )

    def _parse(self, call: Call) -> Mapping[str, Any]:
        if call.broken:
            raise Refused(f"the arguments were not a JSON object; {self._usage()}")
        try:
            parsed = msgspec.convert(call.args, self._arguments, strict=False)
        except msgspec.ValidationError as error:
            raise Refused(f"wrong arguments: {explain_validation(error)}; {self._usage()}") from None
        return {self._struct_parameter: parsed} if self._struct_parameter else msgspec.structs.asdict(parsed)

    def _usage(self) -> str:
        properties = cast("dict[str, dict[str, object]]", self.spec.schema["properties"])
        required = cast("list[str]", self.spec.schema["required"])
        words = [
            f"{name} ({_type_name(schema)}{'' if name in required else ', optional'})"
            for name, schema in properties.items()
        ]
        return f"{self.spec.name} takes: {', '.join(words) or 'no arguments'}"


@overload
def tool(function: ToolFunction, /) -> DefinedTool: ...


@overload
def tool(*, replay: Replay = Replay.NEVER, name: str = "") -> Callable[[ToolFunction], DefinedTool]: ...


def tool(
    function: ToolFunction | None = None, /, *, replay: Replay = Replay.NEVER, name: str = ""
) -> DefinedTool | Callable[[ToolFunction], DefinedTool]:
    """Make a function a tool. Its parameters are the arguments; a first one `context: ToolContext` gets the context.

    For many arguments, use one parameter with a msgspec Struct, whose fields are then the arguments. A plain `def`
    runs in a thread and may block; an `async def` must not. `replay=Replay.SAFE` declares that running a call twice
    does no harm. Raises TypeError for a function that cannot be a tool.
    """

    def define(function: ToolFunction) -> DefinedTool:
        return DefinedTool(function, replay, name or function.__name__)

    return define(function) if function else define


def _shorten(finished: Result, blobs: Blobs) -> Result:
    try:
        text, blob = bounded(finished.text, blobs)
    except (Refused, OSError) as error:  # the tool has run: its result must not be lost because of this
        short = head_and_tail(replace_lone_surrogates(finished.text), 20_000, 8_000, _HINT)
        text, blob = f"{short}\n[the whole text could not be stored: {error}]", ""
    return replace(finished, text=text, blob=finished.blob or blob, details=replace_lone_surrogates(finished.details))


def _takes_context(function: ToolFunction) -> bool:
    parameters = list(inspect.signature(function, eval_str=True).parameters.values())
    return bool(parameters) and parameters[0].annotation is ToolContext


def _parameters(function: ToolFunction) -> list[Parameter]:
    """The parameters that the model fills."""
    parameters = list(inspect.signature(function, eval_str=True).parameters.values())
    return parameters[1:] if _takes_context(function) else parameters


def _struct_parameter(function: ToolFunction) -> str:
    """The name of the parameter that takes all arguments as a struct; empty when there is none."""
    others = _parameters(function)
    kinds = [parameter.annotation for parameter in others]
    return others[0].name if len(kinds) == 1 and isinstance(kinds[0], type) and issubclass(kinds[0], Struct) else ""


def _arguments(function: ToolFunction, name: str) -> type[Struct]:
    parameters = _parameters(function)
    if _struct_parameter(function):
        return parameters[0].annotation
    fields: list[Any] = []
    for parameter in parameters:
        if parameter.kind not in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY):
            raise TypeError(f"tool {name}: {parameter} has no equivalent in a JSON schema")
        if parameter.annotation is Parameter.empty:
            raise TypeError(f"tool {name}: parameter {parameter.name} needs a type")
        default = () if parameter.default is Parameter.empty else (parameter.default,)
        fields.append((parameter.name, parameter.annotation, *default))
    return msgspec.defstruct(name, fields, forbid_unknown_fields=True, kw_only=True)


def _read_docstring(function: ToolFunction) -> tuple[str, Mapping[str, str]]:
    """The description of the tool and of each parameter: lines `name: meaning`, continued where indented."""
    names = "|".join(re.escape(parameter.name) for parameter in _parameters(function))
    lines = (inspect.getdoc(function) or "").splitlines()
    about: list[str] = []
    notes: dict[str, str] = {}
    for line in lines:
        match = re.fullmatch(rf"({names}): (.+)", line) if names else None
        if match:
            notes[match[1]] = match[2].strip()
        elif notes and line.startswith(" "):
            last = next(reversed(notes))
            notes[last] += " " + line.strip()
        else:
            about.append(line)
    description = "\n".join(about).strip()
    if not description:
        raise TypeError(f"tool {function.__name__}: describe it in a docstring; the model reads it")
    return description, notes


def _schema(arguments: type[Struct], notes: Mapping[str, str]) -> dict[str, object]:
    (top,), parts = msgspec.json.schema_components([arguments], ref_template="{name}")
    schema = cast("dict[str, Any]", _inline(top, parts, ()))
    for name, note in notes.items():
        schema["properties"][name].setdefault("description", note)
    return schema


def _inline(schema: Any, parts: Mapping[str, Any], within: tuple[str, ...]) -> Any:
    """The schema without references, which not every provider understands."""
    if isinstance(schema, list):
        return [_inline(item, parts, within) for item in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    branch = cast("dict[str, Any]", schema)
    if isinstance(name := branch.get("$ref"), str):
        if name in within:
            raise TypeError(f"{name} contains itself, which the arguments of a tool must not")
        merged = {**parts[name], **{key: value for key, value in branch.items() if key != "$ref"}}
        merged.pop("title", None)
        return _inline(merged, parts, (*within, name))
    return {key: _inline(value, parts, within) for key, value in branch.items()}


def _type_name(schema: Mapping[str, object]) -> str:
    if "enum" in schema:
        return " or ".join(f"{value!r}" for value in cast("list[object]", schema["enum"]))
    if "anyOf" in schema:
        return " or ".join(_type_name(choice) for choice in cast("list[dict[str, object]]", schema["anyOf"]))
    return str(schema.get("type", "anything"))
