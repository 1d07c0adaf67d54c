"""What our connection relies on in uvicorn's protocol class. A version of uvicorn that changes any of it fails here."""

import ast
import inspect
from types import FunctionType

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from outrider.channels.http.server import BoundedConnection

OVERRIDDEN = {
    "__init__": ["self", "config", "server_state", "app_state", "_loop"],
    "connection_made": ["self", "transport"],
    "connection_lost": ["self", "exc"],
    "data_received": ["self", "data"],
    "on_header": ["self", "name", "value"],
    "on_headers_complete": ["self"],
    "on_message_complete": ["self"],
    "on_body": ["self", "body"],
    "on_response_complete": ["self"],
    "pause_writing": ["self"],
    "resume_writing": ["self"],
    "send_400_response": ["self", "msg"],
    "_unsupported_upgrade_warning": ["self"],
}
"""Uvicorn's methods that our class overrides, with uvicorn's parameters."""
ATTRIBUTES = {"connections", "cycle", "headers", "loop", "transport", "url"}
"""Attributes of uvicorn's connection that our class uses."""
CYCLE_ATTRIBUTES = {"disconnected", "response_complete", "response_started", "waiting_for_100_continue"}
"""Attributes of uvicorn's request cycle that our class uses."""
STATUSES = {400, 408, 431, 501, 503}
"""Statuses whose status line our class takes from uvicorn."""


def methods_of(kind: type) -> dict[str, FunctionType]:
    return {name: value for name, value in vars(kind).items() if isinstance(value, FunctionType)}


def attributes_of(kind: type) -> set[str]:
    """Every attribute that a class of uvicorn's sets or uses in its methods."""
    return {name for method in methods_of(kind).values() for name in method.__code__.co_names}


def test_the_overridden_methods_have_the_parameters_that_are_expected() -> None:
    theirs = methods_of(HttpToolsProtocol)
    assert set(methods_of(BoundedConnection)) & set(theirs) == set(OVERRIDDEN)
    assert {name: list(inspect.signature(theirs[name]).parameters) for name in OVERRIDDEN} == OVERRIDDEN


def test_the_attributes_that_are_used_exist() -> None:
    tree = ast.parse(inspect.getsource(BoundedConnection))
    uses = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    of_self = {node.attr for node in uses if ast.unparse(node.value) == "self"}
    own = set(vars(BoundedConnection)) | {name for name in of_self if name.startswith("_")}
    assert of_self - own == ATTRIBUTES
    assert {node.attr for node in uses if ast.unparse(node.value) == "self.cycle"} == CYCLE_ATTRIBUTES
    assert attributes_of(HttpToolsProtocol) >= ATTRIBUTES
    assert attributes_of(RequestResponseCycle) >= CYCLE_ATTRIBUTES
    assert set(STATUS_LINE) >= STATUSES


def test_what_is_overridden_is_called() -> None:
    """The parser calls `on_*` and asyncio the protocol's own methods; the other two must be called by uvicorn."""
    assert attributes_of(HttpToolsProtocol) >= {
        "send_400_response",
        "_unsupported_upgrade_warning",
        "on_response_complete",
    }
