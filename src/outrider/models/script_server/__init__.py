"""A scripted model over HTTP, for clients of three wire formats. The script's format: `script.py`."""

from outrider.models.script_server.heard import RecordedRequest
from outrider.models.script_server.script import (
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
from outrider.models.script_server.server import ScriptedServer, open_scripted_server

__all__ = [
    "Cut",
    "Empty",
    "Garbage",
    "RecordedRequest",
    "Overflow",
    "ScriptRule",
    "Script",
    "ScriptedServer",
    "Stall",
    "ErrorStatus",
    "parse_script",
    "script",
    "open_scripted_server",
]
