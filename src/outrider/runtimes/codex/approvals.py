"""What Codex asks for, as a request to rules, grants and people; and the answer in its own words. Pure.

What Codex asks while it carries a turn: put to rules, grants and people, or run by a tool of ours.
"""

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio
import msgspec
from anyio.abc import TaskGroup
from msgspec import Struct

from outrider.core.approvals import HOST, NETWORK, ApprovalRequest, Verdict
from outrider.core.approvals import ApprovalRequest as Wanted
from outrider.core.ports import Turn
from outrider.core.types import Call
from outrider.runtimes.codex.app_server import AppServer
from outrider.runtimes.codex.notifications import (
    DECLINED,
    NotificationReader,
    call_of_item,
    plain_command,
    render_changes,
)
from outrider.runtimes.codex.protocol import RawItem, ServerRequestParams, ThreadItem, get_field, parse_server_request
from outrider.runtimes.codex.recovery import approval_key, find_rollout_call
from outrider.runtimes.codex.sandbox_policy import SandboxPolicy, command_needs, patch_needs
from outrider.runtimes.codex.tools import SERVER, ResultCapture, parse_our_call
from outrider.runtimes.codex.watchdog import TurnWatchdog
from outrider.runtimes.external.approvals import ApprovalGate, ApprovalSuspended
from outrider.runtimes.external.recorder import CallOutcome, ExternalCall, TurnRecorder
from outrider.runtimes.jsonrpc.connection import METHOD_NOT_FOUND, RpcRequest
from outrider.runtimes.jsonrpc.errors import RpcError
from outrider.runtimes.mcp_server import PendingCall
from outrider.runtimes.tool_runner import ToolRunner

COMMAND = "item/commandExecution/requestApproval"
PATCH = "item/fileChange/requestApproval"
PERMISSIONS = "item/permissions/requestApproval"
ELICITATION = "mcpServer/elicitation/request"
TOOL_CALL = "item/tool/call"
QUESTION_METHODS = frozenset({COMMAND, PATCH, PERMISSIONS, ELICITATION})


class ApprovalContext(Struct, frozen=True):
    """The thread that asks."""

    workspace: str
    sandbox_policy: SandboxPolicy = SandboxPolicy()
    raw_call: RawItem | None = None
    """How its model called what it asks about."""


def parse_approval_request(
    method: str, params: ServerRequestParams, item: ThreadItem | None, asker: ApprovalContext
) -> ApprovalRequest:
    """What a person is asked. The command is shown as it would run, a patch with all it changes."""
    workspace = asker.workspace
    why = params.reason or ""
    match method:
        case "item/commandExecution/requestApproval":
            command, cwd = (
                plain_command(params.command or (item.command if item else "") or ""),
                params.cwd or workspace,
            )
            shown = command if cwd == workspace else f"(in {cwd}) {command}"
            more = params.additional_permissions
            needs = _needs(more) if more else command_needs(asker.sandbox_policy, params, asker.raw_call)
            return ApprovalRequest("shell", shown, needs, workspace, why)
        case "item/fileChange/requestApproval":
            changes = (item.changes if item else None) or []
            paths = dict.fromkeys(change.path for change in changes)
            needs = patch_needs(asker.sandbox_policy, paths, workspace) if paths else (HOST,)
            return ApprovalRequest("patch", render_changes(changes) or "(it did not say what)", needs, workspace, why)
        case "item/permissions/requestApproval":
            return ApprovalRequest(
                "codex", f"more permissions: {_json(params.permissions)}", _needs(params.permissions), workspace
            )
        case _:
            tool = f"mcp_{params.server_name}"
            shown = params.message or "use a tool"
            args = item.arguments if item and item.arguments is not None else get_field(params.meta, "tool_params")
            return ApprovalRequest(tool, f"{shown}\n{_json(args)}" if args else shown, (HOST,), workspace, why)


def call_of_request(method: str, params: ServerRequestParams, number: object, workspace: str) -> ExternalCall:
    """What a question is about that belongs to no item."""
    item = params.item_id or f"{params.turn_id}-asks-{number}"
    match method:
        case "item/commandExecution/requestApproval":
            return ExternalCall(
                item, "shell", {"command": plain_command(params.command or ""), "cwd": params.cwd or workspace}
            )
        case "item/permissions/requestApproval":
            return ExternalCall(item, "permissions", {"permissions": params.permissions, "reason": params.reason or ""})
        case "mcpServer/elicitation/request":
            return ExternalCall(item, f"mcp_{params.server_name}", {"message": params.message})
        case _:
            return ExternalCall(item, "patch", {})


def is_yes_no(method: str, params: ServerRequestParams) -> bool:
    """Whether yes or no is an answer: a form that wants to be filled in has none here."""
    return method != ELICITATION or not get_field(params.requested_schema, "properties")


def render_response(method: str, params: ServerRequestParams, verdict: Verdict) -> dict[str, Any]:
    """The answer as Codex wants it. A yes is for this once: how far it reaches is kept by us."""
    is_yes = verdict == "allow"
    match method:
        case "item/permissions/requestApproval":
            return {"permissions": params.permissions if is_yes else {}, "scope": "turn"}
        case "mcpServer/elicitation/request":
            return {"action": "accept", "content": {}} if is_yes else {"action": "decline"}
        case _:
            return {"decision": "accept" if is_yes else "decline"}


def has_no_item(method: str) -> bool:
    """Whether no item will tell what came of it."""
    return method == PERMISSIONS


def _needs(permissions: Any) -> tuple[str, ...]:
    """Only the network when that is all that is wanted; else all there is."""
    wanted = {name for name in ("network", "fileSystem") if get_field(permissions, name)}
    return (NETWORK,) if wanted == {"network"} else (HOST,)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


ASSUME_STARTED_AFTER = 1.0
"""Seconds after which what was not asked about is taken to be under way."""
SendResult = Callable[[str, bool], Awaitable[None]]
"""Gives Codex a text, and whether it tells of a failure."""
log = logging.getLogger("outrider.codex")


class ServerRequests:
    """One turn's questions. Each is answered in a task of its own, one after the other."""

    def __init__(
        self,
        turn: Turn,
        server: AppServer,
        ledger: TurnRecorder,
        notifications: NotificationReader,
        watch: TurnWatchdog,
    ) -> None:
        self._turn = turn
        self._server = server
        self._recorder = ledger
        self._notifications = notifications
        self._watchdog = watch
        self._one_at_a_time = anyio.Lock()
        self._asked_items: set[str] = set()
        self.earlier_answers: dict[str, Verdict] = {}
        """What was answered before the work was interrupted; each holds once."""
        self.on_suspended: Callable[[], None] = lambda: None
        """Told when nobody answers."""

    def handle(self, request: RpcRequest, calls: ToolRunner, asking: ApprovalGate, group: TaskGroup) -> None:
        """Answer, some time. Codex waits for it, however long."""
        try:
            wish = parse_server_request(request.params)
        except msgspec.DecodeError as error:
            log.warning("%s was not understood: %s", request.method, error)
            group.start_soon(self._reject, request, f"not understood: {error}")
            return
        if request.method == TOOL_CALL:
            deed = parse_our_call(wish.call_id, wish.tool, wish.arguments)
            group.start_soon(self._run_tool, deed, partial(self._send_tool_result, request), calls, asking)
        elif (
            request.method == ELICITATION and wish.server_name == SERVER and wish.thread_id in self._server.mcp_sessions
        ):
            # Whether the call may run is asked by us, when it comes.
            group.start_soon(self._server.respond, request.id, render_response(ELICITATION, wish, "allow"))
        elif request.method in QUESTION_METHODS and is_yes_no(request.method, wish):
            self._asked_items.add(wish.item_id)
            group.start_soon(self._decide, request, wish, asking)
        elif request.method == ELICITATION:
            group.start_soon(self._server.respond, request.id, {"action": "decline"})
        else:
            log.warning("Codex asked for %s, which Outrider does not know", request.method)
            group.start_soon(self._reject, request, "Outrider does not do this")

    def run_mcp_call(self, pending: PendingCall, calls: ToolRunner, asking: ApprovalGate, group: TaskGroup) -> None:
        """Run a tool of ours for a call that came over MCP."""
        if not pending.id:
            log.warning("this Codex does not say which call of it a call over MCP is, so none is run")
            pending.answer("not run: it did not say which call this is (_meta.callId)", failed=True)
            return

        async def told(text: str, failed: bool) -> None:
            pending.answer(text, failed=failed)

        group.start_soon(self._run_tool, parse_our_call(pending.id, pending.tool, pending.args), told, calls, asking)

    async def assume_started(self, item: str) -> None:
        """It began; unless it is asked about at once, nothing keeps it from being done."""
        await anyio.sleep(ASSUME_STARTED_AFTER)
        if item not in self._asked_items:
            async with self._notifications.recorder_lock:
                await self._recorder.call_started(item)

    async def _reject(self, request: RpcRequest, why: str) -> None:
        await self._server.respond_error(request.id, RpcError(METHOD_NOT_FOUND, why))

    async def _decide(self, request: RpcRequest, params: ServerRequestParams, asking: ApprovalGate) -> None:
        self._watchdog.answer_pending(anyio.current_time())
        try:
            async with self._one_at_a_time:
                await self._decide_one(request, params, asking)
        except ApprovalSuspended:
            self.on_suspended()
        finally:
            self._watchdog.answer_sent(anyio.current_time())

    async def _decide_one(self, request: RpcRequest, params: ServerRequestParams, asking: ApprovalGate) -> None:
        workspace = self._turn.session.workspace
        item = self._item_of(params)
        deed = (call_of_item(item) if item else None) or call_of_request(request.method, params, request.id, workspace)
        async with self._notifications.recorder_lock:
            call = await self._recorder.call_announced(deed, is_held=True)
        fence = self._server.sandbox_policies.get(params.thread_id) or SandboxPolicy()
        called = self._notifications.raw_call(params.item_id)
        if called is None and request.method == COMMAND and fence.is_enforced:
            called = await find_rollout_call(fence.rollout_path, params.item_id)
        asker = ApprovalContext(workspace, fence, called)
        wanted = parse_approval_request(request.method, params, item, asker)
        verdict = self.earlier_answers.pop(approval_key(call), None)
        if verdict is None:
            verdict = await self._verdict(call, wanted, asking)
        async with self._notifications.recorder_lock:
            if verdict == "allow":
                await self._recorder.call_started(deed.item_id)
            if verdict != "allow":
                await self._recorder.call_finished(deed, CallOutcome(DECLINED, failed=True))
            elif has_no_item(request.method):
                await self._recorder.call_finished(deed, CallOutcome("allowed"))
        await self._server.respond(request.id, render_response(request.method, params, verdict))

    async def _verdict(self, call: Call, request: Wanted, asking: ApprovalGate) -> Verdict:
        try:
            return await asking.verdict(call, request)
        except ApprovalSuspended:
            if call.id not in self._turn.state().begun:
                raise
            # It was asked about so late that it counts as begun: such a call cannot be left to wait.
            return "deny"

    def _item_of(self, params: ServerRequestParams) -> ThreadItem | None:
        """What the question is about. One of an MCP server does not say; it is the server's newest call."""
        if params.item_id:
            return self._notifications.open_items.get(params.item_id)
        items = reversed(self._notifications.open_items.values())
        found = next((item for item in items if params.server_name and item.server == params.server_name), None)
        if found:
            self._asked_items.add(found.id)
        return found

    async def _send_tool_result(self, request: RpcRequest, text: str, failed: bool) -> None:
        content = {"contentItems": [{"type": "inputText", "text": text}], "success": not failed}
        await self._server.respond(request.id, content)

    async def _run_tool(self, call: ExternalCall, tell: SendResult, calls: ToolRunner, asking: ApprovalGate) -> None:
        self._watchdog.answer_pending(anyio.current_time())
        try:
            async with self._one_at_a_time:
                await self._run_one_tool(call, tell, calls, asking)
        except ApprovalSuspended:
            self.on_suspended()
        finally:
            self._watchdog.answer_sent(anyio.current_time())

    async def _run_one_tool(
        self, deed: ExternalCall, tell: SendResult, calls: ToolRunner, asking: ApprovalGate
    ) -> None:
        if self._recorder.has_seen(deed.item_id):
            # Codex gave it up while it waited for its turn.
            await tell("not run: it was told to be over", True)
            return
        async with self._notifications.recorder_lock:
            call: Call = await self._recorder.call_announced(deed, is_held=True)
        heard = ResultCapture(self._turn)
        await calls.run(heard, call)
        if heard.result is None:
            await asking.deny_unreachable()
            await asking.wait_for_answer(call)
            await calls.run(heard, call)
        async with self._notifications.recorder_lock:
            await self._recorder.call_returned(deed.item_id)
        result = heard.result
        await tell(result.text if result else "it came to nothing", result is None or result.failed)
