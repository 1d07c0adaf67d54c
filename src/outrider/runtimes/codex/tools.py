"""Our tools in a turn of Codex: what it is offered, and how a call of one is ours. Its own tools it has itself."""

from collections.abc import Mapping
from typing import Any, cast

from outrider.core.events import Body, Delta, Entry, Result
from outrider.core.parts import Call
from outrider.core.plan import State
from outrider.core.ports import Tools, Turn
from outrider.core.prompt import Transcript
from outrider.runtimes.mcp import ToolListing
from outrider.runtimes.outside.ledger import ExternalCall

SERVER = "outrider"
"""What our tools are called as a server of MCP. Calls of it are ours, and written down by us."""
BACKGROUND = "background"
"""Our `shell`, for commands that are to outlive Codex's own process."""
_SHELL = "shell"
_CODEX_HAS = frozenset({_SHELL, "read", "write", "edit", "list", "search"})
_BACKGROUND_DESCRIPTION = (
    "Start a command as a background task of Outrider and do not wait for it: servers, builds, long tests. It goes on "
    "when this turn is over, unlike one started with your own terminal tool, and you are told when it has ended. Look "
    "after it with the tool `tasks`."
)


def tools_for_codex(tools: Tools) -> list[ToolListing]:
    """The tools of this session that Codex has not got itself."""
    own = [ToolListing(name, t.spec.description, t.spec.schema) for name, t in tools.items() if name not in _CODEX_HAS]
    if shell := tools.get(_SHELL):
        own.append(
            ToolListing(
                BACKGROUND, _BACKGROUND_DESCRIPTION, _without_properties(shell.spec.schema, {"background", "timeout"})
            )
        )
    return own


def dynamic_tools(tools: Tools) -> list[dict[str, Any]]:
    """The same, as Codex wants them declared."""
    return [
        {"type": "function", "name": o.name, "description": o.description, "inputSchema": o.schema}
        for o in tools_for_codex(tools)
    ]


def parse_our_call(item: str, tool: str, arguments: Any) -> ExternalCall:
    """A call of one of them, as our tools know it."""
    args = cast("dict[str, object]", arguments) if isinstance(arguments, dict) else {}
    if tool == BACKGROUND:
        return ExternalCall(item, _SHELL, {**args, "background": True})
    return ExternalCall(item, tool, args)


def is_our_call(call: Call, tools: Tools) -> bool:
    """Whether this call is one of our own tools, and not Codex's command under the same name."""
    if call.tool == _SHELL:
        return call.args.get("background") is True
    return call.tool in tools and call.tool not in _CODEX_HAS


class ResultCapture:
    """A turn, in which the result of one call is heard as it is recorded."""

    def __init__(self, turn: Turn) -> None:
        self.session = turn.session
        self.result: Result | None = None
        self._turn = turn

    def state(self) -> State:
        return self._turn.state()

    def transcript(self) -> Transcript:
        return self._turn.transcript()

    async def record(self, body: Body, key: str | None = None) -> Entry | None:
        if isinstance(body, Result):
            self.result = body
        return await self._turn.record(body, key)

    def emit(self, delta: Delta) -> None:
        self._turn.emit(delta)

    async def refresh(self) -> None:
        await self._turn.refresh()

    async def wait_for_entries(self) -> None:
        await self._turn.wait_for_entries()


def _without_properties(schema: Mapping[str, object], names: set[str]) -> dict[str, object]:
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return dict(schema)
    kept = {name: value for name, value in cast("dict[str, object]", properties).items() if name not in names}
    return {**schema, "properties": kept}
