"""A scripted model over HTTP, for clients of three wire formats. The script's format: `script.py`."""

from outrider.models.script_server.heard import Heard
from outrider.models.script_server.script import (
    Cut,
    Empty,
    Garbage,
    Overflow,
    Rule,
    Script,
    Stall,
    Status,
    parse_script,
    script,
)
from outrider.models.script_server.server import ScriptServer, serving

__all__ = [
    "Cut",
    "Empty",
    "Garbage",
    "Heard",
    "Overflow",
    "Rule",
    "Script",
    "ScriptServer",
    "Stall",
    "Status",
    "parse_script",
    "script",
    "serving",
]
