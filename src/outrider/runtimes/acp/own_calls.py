"""Calls of Outrider's tools by an ACP agent, over MCP: run under our rules, and recorded once.

The agent reports these calls, too, and may request permissions for them. Its reports only give them their place among
its messages, and its requests are allowed: Outrider itself asks, when the call arrives, whether it may run.
"""

import re
import secrets
from collections.abc import Callable, Mapping
from typing import cast

import anyio
from msgspec import Struct

from outrider.core.events import Delta
from outrider.core.ports import Turn
from outrider.core.types import Call
from outrider.runtimes.acp.protocol import parse_object
from outrider.runtimes.acp.tool_calls import AcpToolCall
from outrider.runtimes.external.approvals import ApprovalGate
from outrider.runtimes.external.own_tools import SERVER, SERVER_INSTRUCTIONS, parse_our_call, tools_for_program
from outrider.runtimes.external.recorder import TurnRecorder
from outrider.runtimes.mcp_server import McpServer, McpSession, PendingCall
from outrider.runtimes.tool_runner import ToolRunner

_REPORT_TIMEOUT = 2.0
"""Seconds to wait until the agent has reported a call that came over MCP."""
_TITLES = (
    re.compile(rf"(?:mcp[_.:/ -]+)?{SERVER}[_.:/ -]+(\w+)(?: \(MCP\))?"),
    re.compile(rf"(\w+) \({SERVER} MCP Server\)(?:: .*)?", re.DOTALL),
)
"""How agents name a tool of our server."""
_OTHER_KINDS = frozenset({"", "other", "think"})


def server_params(session: McpSession) -> dict[str, object]:
    """Our server in `session/new` and `session/load`. The token is sent over stdin: it is in no file or argument."""
    headers = [{"name": "Authorization", "value": f"Bearer {session.token}"}]
    return {"type": "http", "name": SERVER, "url": session.url, "headers": headers}


class OwnTools(Struct, frozen=True):
    """Runs our tools, and offers them to agents over MCP where there is a server."""

    runner: ToolRunner
    server: McpServer | None

    async def open_session(self, turn: Turn) -> McpSession | None:
        """The session of a turn's agent with our server. Raises OSError when no port is available."""
        if self.server is None:
            return None
        return await self.server.open_session(tools_for_program(self.runner.tools_of(turn)), SERVER_INSTRUCTIONS)


class OwnCalls:
    """The calls of our tools during one prompt."""

    def __init__(
        self, turn: Turn, recorder: TurnRecorder, approvals: ApprovalGate, runner: ToolRunner, prompt_id: str
    ) -> None:
        self.one_at_a_time = anyio.Lock()
        """Held while a call of ours runs, or a permission of the agent is decided: one call is held in the journal."""
        self._turn = turn
        self._recorder = recorder
        self._approvals = approvals
        self._runner = runner
        self._prompt_id = prompt_id
        self._arguments = {tool.name: _properties(tool.schema) for tool in tools_for_program(runner.tools_of(turn))}
        self._reports: dict[str, AcpToolCall] = {}
        """Reports of calls that have not arrived."""
        self._arrived: set[str] = set()
        """Reported calls that have arrived."""
        self._unreported: list[PendingCall] = []
        """Calls that have arrived and were not reported."""
        self._reported = anyio.Event()
        self._running = 0

    @property
    def is_running(self) -> bool:
        return bool(self._running)

    def recognizes(self, call: AcpToolCall) -> bool:
        """Whether the agent means a tool of ours."""
        arguments = self._arguments.get(_tool_name(call))
        return arguments is not None and parse_object(call.input).keys() <= arguments

    def has_arrived(self, id: str) -> bool:
        return id in self._arrived

    def report(self, call: AcpToolCall) -> None:
        """The agent reports one of these calls."""
        if call.id not in self._arrived:
            self._reports[call.id] = call
            for pending in tuple(self._unreported):
                self._claim(pending)
            self._reported.set()
            self._reported = anyio.Event()

    async def run(self, pending: PendingCall, on_start: Callable[[], None]) -> None:
        """Run a call, after a person has allowed it where that is needed. Raises ApprovalSuspended.

        `on_start` is called before it is recorded.
        """
        self._running += 1
        try:
            # MCP is a connection of its own, so what the agent said before this call may not have been read yet.
            self._unreported.append(pending)
            with anyio.move_on_after(_REPORT_TIMEOUT):
                while not self._claim(pending):
                    await self._reported.wait()
            async with self.one_at_a_time:
                on_start()
                await self._run(pending)
        finally:
            self._running -= 1

    async def _run(self, pending: PendingCall) -> None:
        external = parse_our_call(f"{self._prompt_id}/mcp/{secrets.token_hex(8)}", pending.tool, pending.args)
        self._turn.emit(Delta(external.tool, "call"))
        call: Call = await self._recorder.call_announced(external, is_held=True)
        while (result := await self._runner.run(self._turn, call)) is None:
            await self._approvals.deny_unreachable()
            await self._approvals.wait_for_answers(call)
        await self._recorder.call_returned(external.item_id)
        pending.answer(result.text, failed=result.failed)

    def _claim(self, pending: PendingCall) -> bool:
        """Whether this call was reported: by its id, or else the first with the same tool and arguments."""
        if pending in self._unreported:
            same = [call.id for call in self._reports.values() if call.id == pending.id or _is_same(call, pending)]
            if not same:
                return False
            id = pending.id if pending.id in same else same[0]
            del self._reports[id]
            self._arrived.add(id)
            self._unreported.remove(pending)
        return True


def _tool_name(call: AcpToolCall) -> str:
    """The name of the tool of ours that a title means; empty when it means none."""
    if call.kind in _OTHER_KINDS:
        for pattern in _TITLES:
            if found := pattern.fullmatch(call.title.strip()):
                return found[1]
    return ""


def _is_same(call: AcpToolCall, pending: PendingCall) -> bool:
    """Whether this reports that call. The arguments of a first report may be missing."""
    args = parse_object(call.input)
    return _tool_name(call) == pending.tool and (not args or args == pending.args)


def _properties(schema: Mapping[str, object]) -> frozenset[str]:
    properties = schema.get("properties")
    return frozenset(cast("dict[str, object]", properties)) if isinstance(properties, dict) else frozenset()
