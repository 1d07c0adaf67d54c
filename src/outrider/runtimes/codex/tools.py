"""Our tools in a turn of Codex: what it is offered, and how a call of one is ours. Its own tools it has itself.

How a thread of Codex gets our tools: declared when it begins, or over MCP, as `codex.tools` says.
"""

import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any, cast

import anyio.to_thread
from msgspec import Struct

from outrider.config.schema import Config
from outrider.core.events import Body, Delta, Entry, Result
from outrider.core.plan import State
from outrider.core.ports import Tools, Turn
from outrider.core.prompt import Transcript
from outrider.core.types import Call
from outrider.runtimes.external.recorder import ExternalCall
from outrider.runtimes.mcp_server import McpServer, McpSession, ToolListing

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


_STARTUP_TIMEOUT = 30
_CALL_TIMEOUT = 30 * 86_400
"""Seconds. A call may wait for a person, or for a child session; when it has taken too long is for us to say."""
_SERVER_INSTRUCTIONS = (
    "Outrider's tools: start a command that outlives this turn as a background task (`background`), look after such "
    "tasks (`tasks`), hand work to a child session (`delegate`), and the tools that this person added."
)
MCP_TOOLS_HINT = (
    "- These tools are those of the MCP server `outrider`. If you do not see them, look for them with `tool_search`."
)
log = logging.getLogger("outrider.codex")


class ThreadTools(Struct, frozen=True):
    """What one thread is given."""

    mcp_session: McpSession | None = None

    @property
    def config(self) -> dict[str, Any]:
        """Settings for this thread alone. They go to Codex's stdin: no file, no environment, no arguments hold them."""
        if self.mcp_session is None:
            return {}
        server = {
            "url": self.mcp_session.url,
            "http_headers": {"Authorization": f"Bearer {self.mcp_session.token}"},
            # Whether a call may run is asked by us.
            "default_tools_approval_mode": "approve",
            "startup_timeout_sec": _STARTUP_TIMEOUT,
            "tool_timeout_sec": _CALL_TIMEOUT,
        }
        return {"mcp_servers": {SERVER: server}}


class ToolProvider:
    """The lending of one home."""

    def __init__(self, config: Config, mcp_server: McpServer) -> None:
        self.mode = config.codex.tools
        self._marker_folder = config.home / "codex" / "by-mcp"
        self._mcp_server = mcp_server

    async def uses_mcp(self, thread: str) -> bool:
        """Whether a thread that is taken up has our tools over MCP: Codex itself keeps those that were declared."""
        mark = self._marker(thread)
        return self.mode == "mcp" or (self.mode == "auto" and await anyio.to_thread.run_sync(mark.exists))

    async def remember_mcp(self, thread: str) -> None:
        """Remember that this thread was begun without declared tools."""
        mark = self._marker(thread)

        def write() -> None:
            mark.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            mark.touch(mode=0o600)

        await anyio.to_thread.run_sync(write)

    @asynccontextmanager
    async def tools_for_thread(self, tools: Tools, *, by_mcp: bool) -> AsyncGenerator[ThreadTools]:
        """What a thread is given, with a token of its own if by MCP; taken back when the block fails."""
        guest = None
        if by_mcp:
            try:
                guest = await self._mcp_server.open_session(tools_for_codex(tools), _SERVER_INSTRUCTIONS)
            except OSError as error:
                log.warning("Codex gets no tools of ours, so it has no tasks and cannot delegate: %s", error)
        try:
            yield ThreadTools(guest)
        except BaseException:
            if guest:
                guest.close()
            raise

    def _marker(self, thread: str) -> Path:
        return self._marker_folder / blake2b(thread.encode(), digest_size=16).hexdigest()
