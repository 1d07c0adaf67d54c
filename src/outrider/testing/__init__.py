"""Deterministic models for tests: a scripted model in the same process, and a scripted model server over HTTP."""

from typing import TYPE_CHECKING, Any

from outrider.testing.scripted_model import (
    ScriptedCall,
    ScriptedModel,
    ScriptedReply,
    broken_call,
    call,
    fails,
    says,
    stalls,
)

if TYPE_CHECKING:
    from outrider.testing.scripted_server.app import RecordedRequest
    from outrider.testing.scripted_server.script import (
        Cut,
        Empty,
        ErrorStatus,
        Garbage,
        Overflow,
        Script,
        ScriptRule,
        Stall,
        parse_script,
        script,
    )
    from outrider.testing.scripted_server.server import ScriptedServer, open_scripted_server

__all__ = [
    "Cut",
    "Empty",
    "ErrorStatus",
    "Garbage",
    "Overflow",
    "RecordedRequest",
    "Script",
    "ScriptRule",
    "ScriptedCall",
    "ScriptedModel",
    "ScriptedReply",
    "ScriptedServer",
    "Stall",
    "broken_call",
    "call",
    "fails",
    "open_scripted_server",
    "parse_script",
    "says",
    "script",
    "stalls",
]

_SERVER = "outrider.testing.scripted_server"
_EXPORTS = {
    "RecordedRequest": f"{_SERVER}.app",
    "ScriptedServer": f"{_SERVER}.server",
    "open_scripted_server": f"{_SERVER}.server",
}


def __getattr__(name: str) -> Any:
    """Import the server's names when they are first used: a test with a model in its process needs no HTTP server."""
    if name not in __all__:
        raise AttributeError(f"module 'outrider.testing' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_EXPORTS.get(name, f"{_SERVER}.script")), name)
