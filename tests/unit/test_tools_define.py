"""Typed functions as tools: the schema a model sees, the arguments it may get wrong, the results it reads."""

from pathlib import Path
from threading import current_thread, main_thread
from typing import Annotated, Literal

import pytest
from msgspec import Meta, Struct

from outrider.core.errors import Refused, Unavailable
from outrider.core.events import Result
from outrider.core.ports import ToolContext
from outrider.core.store_port import Session
from outrider.core.types import Call, Replay, ToolSpec
from outrider.tools.define import bounded, result, tool
from outrider.workspaces.local import open_local

pytestmark = pytest.mark.anyio

SESSION = Session("s1", "me", "main", "", "", 0, 0, 0, False, False)


class MemoryBlobs:
    """Blobs in memory."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}

    def put(self, content: bytes) -> str:
        name = f"blob{len(self.blobs)}"
        self.blobs[name] = content
        return name

    def get(self, name: str) -> bytes:
        return self.blobs[name]


@pytest.fixture
def context(tmp_path: Path) -> ToolContext:
    return ToolContext(SESSION, open_local(tmp_path), MemoryBlobs())


class Point(Struct):
    x: int
    y: int = 0


@tool(replay=Replay.SAFE)
async def draw(
    context: ToolContext,
    name: str,
    points: list[Point],
    colour: Literal["red", "blue"] = "red",
    width: Annotated[float, Meta(gt=0)] = 1.0,
    note: str | None = None,
) -> str:
    """Draw a line.

    It may cross itself.

    name: what to call it,
        in one word
    points: where it goes
    """
    return f"{name}: {len(points)} {colour} {width} {note}"


def test_the_signature_is_the_schema_and_the_docstring_the_description() -> None:
    assert draw.spec == ToolSpec(
        "draw",
        "Draw a line.\n\nIt may cross itself.",
        {
            "type": "object",
            "properties": {
                "name": {"type": "string", "description": "what to call it, in one word"},
                "points": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {"x": {"type": "integer"}, "y": {"type": "integer", "default": 0}},
                        "required": ["x"],
                    },
                    "description": "where it goes",
                },
                "colour": {"enum": ["blue", "red"], "default": "red"},
                "width": {"type": "number", "exclusiveMinimum": 0, "default": 1.0},
                "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
            },
            "required": ["name", "points"],
            "additionalProperties": False,
        },
        Replay.SAFE,
    )


async def test_arguments_of_similar_types_are_converted(context: ToolContext) -> None:
    args: dict[str, object] = {"name": "a", "points": [{"x": "1"}], "width": "2.5", "note": None}
    assert await draw.run(Call("c1", "draw", args), context) == Result("c1", "a: 1 red 2.5 None")


TAKES = (
    "draw takes: name (string), points (array), colour ('blue' or 'red', optional), "
    "width (number, optional), note (string or null, optional)"
)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"name": "a"}, "wrong arguments: points is missing"),
        ({"name": "a", "points": [], "x": 1}, "wrong arguments: there is no field x"),
        ({"name": 5, "points": []}, "wrong arguments: name must be a string, not a whole number"),
        ({"name": "a", "points": [], "colour": "green"}, "wrong arguments: colour cannot be 'green'"),
        ({"name": "a", "points": [{"y": 1}]}, "wrong arguments: points[0].x is missing"),
    ],
)
async def test_wrong_arguments_fail_with_the_expected_ones(
    context: ToolContext, args: dict[str, object], message: str
) -> None:
    assert await draw.run(Call("c1", "draw", args), context) == Result("c1", f"{message}; {TAKES}", failed=True)


async def test_arguments_that_are_not_json_fail(context: ToolContext) -> None:
    assert await draw.run(Call("c1", "draw", {}, broken="{"), context) == Result(
        "c1", f"the arguments were not a JSON object; {TAKES}", failed=True
    )


async def test_refused_and_unavailable_become_failed_results(context: ToolContext) -> None:
    @tool
    async def fail(context: ToolContext, later: bool) -> str:
        """Fail."""
        raise Unavailable("busy") if later else Refused("no")

    assert await fail.run(Call("c1", "fail", {"later": True}), context) == Result("c1", "busy", failed=True)
    assert await fail.run(Call("c1", "fail", {"later": False}), context) == Result("c1", "no", failed=True)


async def test_a_plain_function_runs_in_a_thread_and_may_block(context: ToolContext) -> None:
    @tool(name="where")
    def find_out(context: ToolContext) -> Result:
        """Tell where this runs."""
        return result("main" if current_thread() is main_thread() else "thread", details="messages")

    assert (find_out.spec.name, find_out.spec.replay) == ("where", Replay.NEVER)
    assert await find_out.run(Call("c1", "where", {}), context) == Result("c1", "thread", details="messages")


async def test_a_tool_can_reconcile_a_call(context: ToolContext) -> None:
    @tool
    async def send(context: ToolContext, to: str) -> None:
        """Send."""

    call = Call("c1", "send", {"to": "you"})
    assert await send.run(call, context) == Result("c1", "done")
    assert await send.reconcile(call, context) is None

    @send.reconciles
    async def _sent(context: ToolContext, to: str) -> str | None:
        return f"sent to {to}" if to == "you" else None

    assert await send.reconcile(call, context) == Result("c1", "sent to you")
    assert await send.reconcile(Call("c1", "send", {"to": "me"}), context) is None


async def test_a_long_result_is_shortened_and_stored_whole_as_a_blob(context: ToolContext) -> None:
    @tool
    async def write_much(context: ToolContext) -> str:
        """Write much."""
        return "a" * 50_000 + "b" * 50_000

    got = await write_much.run(Call("c1", "write_much", {}), context)
    gap = "[… 72,000 of 100,000 characters left out; ask for a smaller part to see it …]"
    assert got == Result("c1", f"{'a' * 20_000}\n{gap}\n{'b' * 8_000}", blob="blob0")
    assert context.blobs.get("blob0") == b"a" * 50_000 + b"b" * 50_000


async def test_lone_surrogates_do_not_reach_the_journal(context: ToolContext) -> None:
    @tool
    async def odd(context: ToolContext) -> str:
        """Say something odd."""
        return "a\ud800b"

    assert (await odd.run(Call("c1", "odd", {}), context)).text == "a?b"


def test_bounds_and_the_hint_can_be_chosen() -> None:
    blobs = MemoryBlobs()
    assert bounded("abc", blobs) == ("abc", "")
    assert bounded("abcdefghij", blobs, head=3, tail=2, hint="look at the log") == (
        "abc\n[… 5 of 10 characters left out; look at the log …]\nij",
        "blob0",
    )
    assert bounded("abcdefghij", blobs, head=3, tail=0)[0].endswith("…]\n")


async def test_a_function_needs_no_context(context: ToolContext) -> None:
    @tool
    async def double(number: int) -> str:
        """Double a number.

        number: which one
        """
        return str(2 * number)

    assert double.spec.schema["required"] == ["number"]
    assert (await double.run(Call("c1", "double", {"number": 4}), context)).text == "8"


class Tree(Struct):
    branches: "list[Tree]"


def test_a_function_that_cannot_be_a_tool_is_refused_when_it_is_defined() -> None:
    async def without_words(context: ToolContext) -> str:
        return ""

    async def without_type(context: ToolContext, path) -> str:  # pyright: ignore
        """Do."""
        return ""

    async def with_any_number(context: ToolContext, *paths: str) -> str:
        """Do."""
        return ""

    async def without_end(context: ToolContext, tree: Tree) -> str:
        """Do."""
        return ""

    messages: list[str] = []
    for function in (without_words, without_type, with_any_number, without_end):  # pyright: ignore
        with pytest.raises(TypeError) as wrong:
            tool(function)  # pyright: ignore
        messages.append(str(wrong.value))
    assert messages == [
        "tool without_words: describe it in a docstring; the model reads it",
        "tool without_type: parameter path needs a type",
        "tool with_any_number: *paths: str has no equivalent in a JSON schema",
        "Tree contains itself, which the arguments of a tool must not",
    ]
