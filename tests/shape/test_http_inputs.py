"""Over HTTP a turn starts in one place, `inputs.accept_input`, which sets its address: no endpoint can omit it."""

import ast
import inspect
from typing import Any

import pytest

from outrider.app import addresses as channels
from outrider.channels.http.app import ENDPOINTS
from outrider.core.delivery import ChannelTraits, DeliveryMode, check_delivery
from tests.shape.repository import SRC, parse, python_files
from tests.support.turn_requests import turn_requests

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
"""Members of an agent, and of what it is built on, that can start or continue a turn."""
ALLOWED = {"inputs.py": STARTING}
"""The modules that may use them."""


def turn_starts(tree: ast.Module, file: str) -> list[str]:
    """Where a file uses a member that can start a turn and that it may not use."""
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    return [
        f"{file}:{node.lineno}: .{node.attr}" for node in attributes if node.attr in STARTING - ALLOWED.get(file, set())
    ]


@pytest.mark.behaviour("B8")
def test_only_accept_input_can_start_a_turn() -> None:
    assert [use for path in python_files(HTTP) for use in turn_starts(parse(path), path.name)] == []


def test_an_endpoint_that_starts_a_turn_by_itself_is_noticed() -> None:
    tree = ast.parse("async def say(call):\n    await call.agent.post('hi')\n")
    assert turn_starts(tree, "new.py") == ["new.py:2: .post"]


def calls(module: Any, function: str, name: str) -> bool:
    """Whether a function calls this one, directly or through others of its module."""
    tree = ast.parse(inspect.getsource(module))
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    visited, pending = set[str](), [function]
    while pending:
        current = pending.pop()
        if current in functions and current not in visited:
            pending += [node.id for node in ast.walk(functions[current]) if isinstance(node, ast.Name)]
        visited.add(current)
    return name in visited


@pytest.mark.behaviour("B8")
def test_every_endpoint_that_accepts_inputs_is_listed_with_its_channel() -> None:
    accepting = {
        f"{one.method} {one.path}"
        for one in ENDPOINTS
        if calls(inspect.getmodule(one.handler), one.handler.__name__, "accept_input")
    }
    assert accepting == {request.name for request in turn_requests("").values()}


@pytest.mark.behaviour("B1")
def test_a_channel_without_a_delivery_mode_cannot_be_defined() -> None:
    with pytest.raises(TypeError, match="delivery"):
        ChannelTraits()  # pyright: ignore[reportCallIssue]


@pytest.mark.behaviour("B1")
def test_every_channel_has_a_delivery_mode_and_an_unknown_one_delivers_nothing() -> None:
    names = {value for name, value in vars(channels).items() if name.isupper() and isinstance(value, str)}
    assert names == set(channels.CHANNELS)
    modes = {name: traits.delivery for name, traits in channels.CHANNELS.items()}
    assert modes["terminal"] is DeliveryMode.PUSH
    assert (modes["responses"], modes["sessions"], modes["chat"]) == (
        DeliveryMode.PULL,
        DeliveryMode.PULL,
        DeliveryMode.NONE,
    )
    for name, mode in (*modes.items(), ("carrier pigeon", DeliveryMode.NONE), ("", DeliveryMode.NONE)):
        assert check_delivery(f"{name}:x", channels.CHANNELS).can_deliver is (mode is not DeliveryMode.NONE)
