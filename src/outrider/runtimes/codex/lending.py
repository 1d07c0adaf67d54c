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
from outrider.runtimes.codex.tools import SERVER, offered
from outrider.runtimes.mcp import Door, Guest

_START = 30
_CALL = 30 * 86_400
"""Seconds. A call may wait for a person, or for a child session; when it has taken too long is for us to say."""
_ABOUT = (
    "Outrider's tools: start a command that outlives this turn as a background task (`background`), look after such "
    "tasks (`tasks`), hand work to a child session (`delegate`), and the tools that this person added."
)
FOUND = (
    "- These tools are those of the MCP server `outrider`. If you do not see them, look for them with `tool_search`."
)
log = logging.getLogger("outrider.codex")


class Lent(Struct, frozen=True):
    """What one thread is given."""

    guest: Guest | None = None

    @property
    def config(self) -> dict[str, Any]:
        """Settings for this thread alone. They go to Codex's stdin: no file, no environment, no arguments hold them."""
        if self.guest is None:
            return {}
        server = {
            "url": self.guest.url,
            "http_headers": {"Authorization": f"Bearer {self.guest.token}"},
            # Whether a call may run is asked by us.
            "default_tools_approval_mode": "approve",
            "startup_timeout_sec": _START,
            "tool_timeout_sec": _CALL,
        }
        return {"mcp_servers": {SERVER: server}}


class Lending:
    """The lending of one home."""

    def __init__(self, config: Config, door: Door) -> None:
        self.how = config.codex.tools
        self._marks = config.home / "codex" / "by-mcp"
        self._door = door

    async def was_by_mcp(self, thread: str) -> bool:
        """Whether a thread that is taken up has our tools over MCP: Codex itself keeps those that were declared."""
        mark = self._mark(thread)
        return self.how == "mcp" or (self.how == "auto" and await anyio.to_thread.run_sync(mark.exists))

    async def keep(self, thread: str) -> None:
        """Remember that this thread was begun without declared tools."""
        mark = self._mark(thread)

        def write() -> None:
            mark.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            mark.touch(mode=0o600)

        await anyio.to_thread.run_sync(write)

    @asynccontextmanager
    async def lent(self, tools: Tools, *, by_mcp: bool) -> AsyncGenerator[Lent]:
        """What a thread is given, with a token of its own if by MCP; taken back when the block fails."""
        guest = None
        if by_mcp:
            try:
                guest = await self._door.guest(offered(tools), _ABOUT)
            except OSError as error:
                log.warning("Codex gets no tools of ours, so it has no tasks and cannot delegate: %s", error)
        try:
            yield Lent(guest)
        except BaseException:
            if guest:
                guest.close()
            raise

    def _mark(self, thread: str) -> Path:
        return self._marks / blake2b(thread.encode(), digest_size=16).hexdigest()
