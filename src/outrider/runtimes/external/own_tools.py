"""Outrider's tools for external programs: which ones a program gets, and how its calls of them are parsed. Pure."""

from collections.abc import Mapping
from typing import Any, cast

from outrider.core.ports import Tools
from outrider.core.types import Call
from outrider.runtimes.external.recorder import ExternalCall
from outrider.runtimes.mcp_server import ToolListing

SERVER = "outrider"
"""The name of our MCP server. Calls of its tools come to us and are recorded by us."""
BACKGROUND = "background"
"""Our `shell`, for commands that outlive the program's own process."""
_SHELL = "shell"
_PROGRAM_HAS = frozenset({_SHELL, "read", "write", "edit", "list", "search"})
_BACKGROUND_DESCRIPTION = (
    "Start a command as a background task of Outrider and do not wait for it: servers, builds, long tests. It keeps "
    "running when this turn is over, unlike one started with your own terminal tool, and you are notified when it has "
    "ended. Manage it with the tool `tasks`."
)
SERVER_INSTRUCTIONS = (
    "Outrider's tools: start a command that outlives this turn as a background task (`background`), manage such "
    "tasks (`tasks`), hand work to a child session (`delegate`), and the tools that this person added."
)


def tools_for_program(tools: Tools) -> list[ToolListing]:
    """The tools of this session that such a program does not have itself."""
    own = [
        ToolListing(name, t.spec.description, t.spec.schema) for name, t in tools.items() if name not in _PROGRAM_HAS
    ]
    if shell := tools.get(_SHELL):
        own.append(
            ToolListing(
                BACKGROUND, _BACKGROUND_DESCRIPTION, _without_properties(shell.spec.schema, {"background", "timeout"})
            )
        )
    return own


def parse_our_call(item: str, tool: str, arguments: Any) -> ExternalCall:
    """A call of one of our tools, under the name it has for us."""
    args = cast("dict[str, object]", arguments) if isinstance(arguments, dict) else {}
    if tool == BACKGROUND:
        return ExternalCall(item, _SHELL, {**args, "background": True})
    return ExternalCall(item, tool, args)


def is_our_call(call: Call, tools: Tools) -> bool:
    """Whether this call is one of our own tools, and not a command of the program under the same name."""
    if call.tool == _SHELL:
        return call.args.get("background") is True
    return call.tool in tools and call.tool not in _PROGRAM_HAS


def _without_properties(schema: Mapping[str, object], names: set[str]) -> dict[str, object]:
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return dict(schema)
    rest = {name: value for name, value in cast("dict[str, object]", properties).items() if name not in names}
    return {**schema, "properties": rest}
