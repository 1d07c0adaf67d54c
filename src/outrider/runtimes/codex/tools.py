"""Outrider's tools in a thread of Codex: how it gets them. Which ones, and their calls: `external/own_tools.py`.

`codex.tools` says how: as dynamic tools that are declared when the thread begins, or over MCP.
"""

import logging
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any

import anyio.to_thread
from msgspec import Struct
from msgspec.structs import replace

from outrider.config.schema import Config
from outrider.core.errors import Refused
from outrider.core.events import Result
from outrider.core.ports import Tools, Turn
from outrider.core.types import Call
from outrider.runtimes.external.history import LoadImage
from outrider.runtimes.external.images import data_url
from outrider.runtimes.external.own_tools import SERVER as SERVER
from outrider.runtimes.external.own_tools import SERVER_INSTRUCTIONS, tools_for_program
from outrider.runtimes.external.own_tools import is_our_call as is_our_call
from outrider.runtimes.external.own_tools import parse_our_call as parse_our_call
from outrider.runtimes.mcp_server import McpServer, McpSession
from outrider.runtimes.tool_runner import ToolRunner
from outrider.system.files import create_marker

_STARTUP_TIMEOUT = 30
_CALL_TIMEOUT = 30 * 86_400
"""Seconds. A call may wait for a person or a child session; we decide when it has taken too long."""
MCP_TOOLS_HINT = (
    "- These tools belong to the MCP server `outrider`. If you do not see them, look for them with `tool_search`."
)
log = logging.getLogger("outrider.codex")


def dynamic_tools(tools: Tools) -> list[dict[str, Any]]:
    """The same tools as parameters of `thread/start`."""
    return [
        {"type": "function", "name": tool.name, "description": tool.description, "inputSchema": tool.schema}
        for tool in tools_for_program(tools)
    ]


class TaskOutputs:
    """The output files of tasks, which are in Outrider's home: Codex's sandbox hides them, and `tasks` reads them."""

    def __init__(self, home: Path) -> None:
        self._path = re.compile(re.escape(str(home / "tasks")) + r"/([\w-]+)/output\b")

    def rename(self, text: str) -> str:
        """The text with each of these files replaced by the call that reads it."""
        return self._path.sub(r"tasks(action=read, task=\1)", text)


class OwnToolRunner:
    """Runs Outrider's tools for Codex."""

    def __init__(self, tool_runner: ToolRunner, outputs: TaskOutputs, load_image: LoadImage) -> None:
        self._tool_runner = tool_runner
        self._outputs = outputs
        self._load_image = load_image

    async def run(self, turn: Turn, call: Call) -> Result | None:
        """The result as Codex reads it; it is recorded as every runtime reads it. None while a question is pending."""
        result = await self._tool_runner.run(turn, call)
        return replace(result, text=self._outputs.rename(result.text)) if result else None

    def render_content(self, result: Result) -> list[dict[str, str]]:
        """The result of a dynamic tool call."""
        content = [{"type": "inputText", "text": result.text}]
        for image in result.images:
            try:
                content.append({"type": "inputImage", "imageUrl": data_url(image.media, self._load_image(image))})
            except Refused:
                content.append({"type": "inputText", "text": "[an image was here, which cannot be read any more]"})
        return content


class ThreadTools(Struct, frozen=True):
    """How one thread reaches our tools."""

    mcp_session: McpSession | None = None

    @property
    def config(self) -> dict[str, Any]:
        """Settings for this thread alone. They are sent over stdin: no file, variable or argument contains them."""
        if self.mcp_session is None:
            return {}
        server = {
            "url": self.mcp_session.url,
            "http_headers": {"Authorization": f"Bearer {self.mcp_session.token}"},
            # Outrider itself asks whether a call may run.
            "default_tools_approval_mode": "approve",
            "startup_timeout_sec": _STARTUP_TIMEOUT,
            "tool_timeout_sec": _CALL_TIMEOUT,
        }
        return {"mcp_servers": {SERVER: server}}


class ToolProvider:
    """Provides the threads of one home with our tools."""

    def __init__(self, config: Config, mcp_server: McpServer) -> None:
        self.mode = config.codex.tools
        self._marker_folder = config.home / "codex" / "by-mcp"
        self._mcp_server = mcp_server

    async def uses_mcp(self, thread: str) -> bool:
        """Whether a thread that is resumed needs our tools over MCP. Codex itself remembers dynamic tools."""
        marker = self._marker(thread)
        return self.mode == "mcp" or (self.mode == "auto" and await anyio.to_thread.run_sync(marker.exists))

    async def remember_mcp(self, thread: str) -> None:
        """Remember that this thread was started without dynamic tools."""
        await anyio.to_thread.run_sync(create_marker, self._marker(thread))

    @asynccontextmanager
    async def tools_for_thread(self, tools: Tools, *, uses_mcp: bool) -> AsyncGenerator[ThreadTools]:
        """The tools of a thread, over MCP with a token of its own; the token is revoked when the block fails."""
        session = None
        if uses_mcp:
            try:
                session = await self._mcp_server.open_session(tools_for_program(tools), SERVER_INSTRUCTIONS)
            except OSError as error:
                log.warning("Codex gets none of Outrider's tools, so it has no tasks and cannot delegate: %s", error)
        try:
            yield ThreadTools(session)
        except BaseException:
            if session:
                session.close()
            raise

    def _marker(self, thread: str) -> Path:
        return self._marker_folder / blake2b(thread.encode(), digest_size=16).hexdigest()
