"""How a thread of Codex gets our tools: declared when it begins, or over MCP, as `codex.tools` says."""

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any

import anyio.to_thread
from msgspec import Struct

from outrider.config.load import Config
from outrider.core.ports import Tools
from outrider.runtimes.codex.tools import SERVER, tools_for_codex
from outrider.runtimes.mcp import McpServer, McpSession

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

    def __init__(self, config: Config, door: McpServer) -> None:
        self.mode = config.codex.tools
        self._marker_folder = config.home / "codex" / "by-mcp"
        self._mcp_server = door

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
