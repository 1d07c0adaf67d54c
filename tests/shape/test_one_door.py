"""Over HTTP a turn begins in one place, `inputs.accept_input`, which fixes its address: no route can forget it."""

import ast
import inspect
from typing import Any

import pytest
from starlette.routing import Route

from outrider.app import addresses as channels
from outrider.channels.http.app import ROUTES
from outrider.core.delivery import ChannelTraits, DeliveryMode, check_delivery
from tests.shape.repository import SRC, parse, python_files
from tests.support.doors import knocks

HTTP = SRC / "channels" / "http"
STARTING = {
    "post",
    "say",
    "events",
    "submit_results",
    "record_results",
    "seed",
    "change",
    "accept",
    "inbox",
    "resume",
    "resume_all",
}
"""What of an agent, and of what it stands on, can begin a turn or have one go on."""
DOOR = {"inputs.py": STARTING}
"""Who may: the door, and what it calls to change settings."""


def starts(tree: ast.Module, file: str) -> list[str]:
    """Where a file reaches for something that can begin a turn and that is not its business."""
    reached = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    return [f"{file}:{node.lineno}: .{node.attr}" for node in reached if node.attr in STARTING - DOOR.get(file, set())]


@pytest.mark.behaviour("B8")
def test_only_the_door_of_http_can_begin_a_turn() -> None:
    assert [found for path in python_files(HTTP) for found in starts(parse(path), path.name)] == []


def test_a_route_that_begins_a_turn_by_itself_would_be_found() -> None:
    tree = ast.parse("async def say(request):\n    await agent_of(request).post('hi')\n")
    assert starts(tree, "routes_new.py") == ["routes_new.py:2: .post"]


def reaches(module: Any, function: str, name: str) -> bool:
    """Whether a function calls this one, itself or through others of its module."""
    tree = ast.parse(inspect.getsource(module))
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    seen, to_see = set[str](), [function]
    while to_see:
        here = to_see.pop()
        if here in functions and here not in seen:
            to_see += [node.id for node in ast.walk(functions[here]) if isinstance(node, ast.Name)]
        seen.add(here)
    return name in seen


def endpoint(one: Route) -> Any:
    """The function behind a route, as its module wrote it."""
    return inspect.getclosurevars(one.endpoint).nonlocals["endpoint"]


@pytest.mark.behaviour("B8")
def test_every_route_that_enters_is_known_with_its_channel() -> None:
    entering = {
        f"{method} {one.path}"
        for one in ROUTES
        for method in one.methods or ()
        if reaches(inspect.getmodule(endpoint(one)), endpoint(one).__name__, "accept_input")
    }
    assert entering == {knock.name for knock in knocks("").values()}


@pytest.mark.behaviour("B1")
def test_a_channel_that_does_not_say_how_words_reach_people_later_cannot_be_made() -> None:
    with pytest.raises(TypeError, match="delivery"):
        ChannelTraits()  # pyright: ignore[reportCallIssue]


@pytest.mark.behaviour("B1")
def test_every_channel_says_how_words_reach_people_later_and_an_unknown_one_is_promised_nothing() -> None:
    named = {value for name, value in vars(channels).items() if name.isupper() and isinstance(value, str)}
    assert named == set(channels.CHANNELS)
    later = {name: traits.delivery for name, traits in channels.CHANNELS.items()}
    assert later["terminal"] is DeliveryMode.PUSH
    assert (later["responses"], later["sessions"], later["chat"]) == (
        DeliveryMode.PULL,
        DeliveryMode.PULL,
        DeliveryMode.NONE,
    )
    for name, how in (*later.items(), ("carrier pigeon", DeliveryMode.NONE), ("", DeliveryMode.NONE)):
        assert check_delivery(f"{name}:x", channels.CHANNELS).can_deliver is (how is not DeliveryMode.NONE)
