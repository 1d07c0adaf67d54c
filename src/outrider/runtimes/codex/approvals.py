"""Requests of Codex during a turn: approvals, decided by rules, permissions and people, and calls of our tools.

The walk of one request: `ServerRequests.handle` parses it, `_decide` records the call, asks the approval gate and
responds. The gate itself is in `external/approvals.py`.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import anyio
import msgspec
from anyio.abc import TaskGroup
from msgspec import Struct

from outrider.core.approvals import (
    HOST,
    NETWORK,
    AccessDecision,
    ApprovalRequest,
    RequestDetail,
    Verdict,
    argument_details,
)
from outrider.core.events import Delta, Result
from outrider.core.ports import Turn
from outrider.core.text import plural
from outrider.runtimes.codex.app_server import AppServer, LoadedThread
from outrider.runtimes.codex.notifications import (
    ItemTracker,
    call_of_item,
    moved_to,
    plain_command,
    render_changes,
    unread_changes,
)
from outrider.runtimes.codex.protocol import (
    RawItem,
    ServerRequestParams,
    ThreadItem,
    get_field,
    parse_arguments,
    parse_server_request,
)
from outrider.runtimes.codex.recovery import find_rollout_call
from outrider.runtimes.codex.sandbox_policy import SandboxPolicy, command_needs, patch_needs
from outrider.runtimes.codex.tools import SERVER, OwnToolRunner, parse_our_call
from outrider.runtimes.codex.watchdog import TurnWatchdog
from outrider.runtimes.external.approvals import ApprovalGate
from outrider.runtimes.external.recorder import CallOutcome, ExternalCall, TurnRecorder
from outrider.runtimes.jsonrpc.connection import METHOD_NOT_FOUND, RequestId, RpcRequest
from outrider.runtimes.jsonrpc.errors import RpcError
from outrider.runtimes.mcp_server import PendingCall

COMMAND = "item/commandExecution/requestApproval"
PATCH = "item/fileChange/requestApproval"
PERMISSIONS = "item/permissions/requestApproval"
ELICITATION = "mcpServer/elicitation/request"
TOOL_CALL = "item/tool/call"
QUESTION_METHODS = frozenset({COMMAND, PATCH, PERMISSIONS, ELICITATION})
_REPORT_TIMEOUT = 5.0
"""Seconds to wait until Codex has reported a call that came over MCP."""
SendResult = Callable[[Result], Awaitable[None]]
"""Sends Codex a result."""
log = logging.getLogger("outrider.codex")


class ApprovalContext(Struct, frozen=True):
    """The thread that asks for an approval."""

    workspace: str
    sandbox_policy: SandboxPolicy = SandboxPolicy()
    raw_call: RawItem | None = None
    """How its model called what it asks about."""


def parse_approval_request(
    method: str, params: ServerRequestParams, item: ThreadItem | None, context: ApprovalContext
) -> ApprovalRequest:
    """What a person is asked. A command is shown as it would run, a patch with everything it changes."""
    workspace = context.workspace
    reason = params.reason or ""
    match method:
        case "item/commandExecution/requestApproval":
            command = plain_command(params.command or (item.command if item else "") or "")
            more = params.additional_permissions
            needs = _needs(more) if more else command_needs(context.sandbox_policy, params, context.raw_call)
            return ApprovalRequest("shell", command, needs, workspace, reason, _command_details(params, workspace))
        case "item/fileChange/requestApproval":
            changes = (item.changes if item else None) or []
            paths = dict.fromkeys(path for change in changes for path in (change.path, moved_to(change)) if path)
            needs = patch_needs(context.sandbox_policy, paths, workspace) if paths else (HOST,)
            text = render_changes(changes)
            details = [RequestDetail("All files", "\n".join(paths))] if len(paths) > 1 else []
            details += [RequestDetail("May write below", params.grant_root)] if params.grant_root else []
            return ApprovalRequest("patch", text, needs, workspace, reason, tuple(details))
        case "item/permissions/requestApproval":
            text = f"more permissions: {_json(params.permissions)}"
            needs = _needs(params.permissions)
            return ApprovalRequest("codex", text, needs, workspace, reason, _command_details(params, workspace))
        case _:
            args = item.arguments if item and item.arguments is not None else get_field(params.meta, "tool_params")
            given = {"title": params.title, "description": params.description, "challenge": params.challenge}
            parts = {**given, "url": params.url, "arguments": args}
            details = argument_details({name: value for name, value in parts.items() if value})
            text = params.message or "(the server sent no message)"
            return ApprovalRequest(f"mcp_{params.server_name}", text, (HOST,), workspace, reason, details)


def _command_details(params: ServerRequestParams, workspace: str) -> tuple[RequestDetail, ...]:
    details: list[RequestDetail] = []
    if params.kind == "writeStdin":
        details.append(RequestDetail("This is input to a command that runs already"))
    elif params.kind != "command":
        details.append(RequestDetail("Codex calls this kind of request", params.kind))
    if params.cwd and params.cwd != workspace:
        details.append(RequestDetail("In the folder", params.cwd))
    if params.network_approval_context:
        details.append(RequestDetail("For the network host", _json(params.network_approval_context)))
    if params.additional_permissions:
        details.append(RequestDetail("With more permissions", _json(params.additional_permissions)))
    return tuple(details)


def unread_parts(method: str, params: ServerRequestParams, item: ThreadItem | None) -> Sequence[str]:
    """What could not be read of that which a person would have to know. Such a request is denied, not shown in part."""
    unread = list(params.unread)
    match method:
        case "item/commandExecution/requestApproval":
            command = params.command or (item.command if item else "")
            unread += [] if command or params.network_approval_context else ["command"]
            unread += _unless_object("additionalPermissions", params.additional_permissions)
            unread += _unless_object("networkApprovalContext", params.network_approval_context)
        case "item/fileChange/requestApproval":
            unread += unread_changes(item) if item else ["changes"]
        case "item/permissions/requestApproval":
            unread += _unless_object("permissions", params.permissions or "")
        case _:
            unread += [] if params.message or params.title or params.url else ["message"]
            unread += [] if params.server_name else ["serverName"]
            unread += _unless_object("_meta", params.meta)
            unread += [name for name in (item.unread if item else ()) if name == "arguments"]
    return list(dict.fromkeys(unread))


def _unless_object(name: str, value: Any) -> list[str]:
    return [] if value is None or isinstance(value, dict) else [name]


def call_of_request(method: str, params: ServerRequestParams, number: RequestId, workspace: str) -> ExternalCall:
    """The call that a request is about when it belongs to no item."""
    item = params.item_id or _own_item_id(params, number)
    match method:
        case "item/commandExecution/requestApproval":
            args = {"command": plain_command(params.command or ""), "cwd": params.cwd or workspace}
            return ExternalCall(item, "shell", args)
        case "item/permissions/requestApproval":
            return ExternalCall(item, "permissions", {"permissions": params.permissions, "reason": params.reason or ""})
        case "mcpServer/elicitation/request":
            return ExternalCall(item, f"mcp_{params.server_name}", {"message": params.message})
        case _:
            return ExternalCall(item, "patch", {})


def _own_item_id(params: ServerRequestParams, number: RequestId) -> str:
    name = number if isinstance(number, int | str) else bytes(number).decode(errors="replace")
    return f"{params.turn_id}-asks-{name}"


def is_yes_no(method: str, params: ServerRequestParams) -> bool:
    """Whether yes or no answers the request. A form that has to be filled in is not supported here."""
    is_form = bool(_unless_object("requestedSchema", params.requested_schema))
    is_form = is_form or bool(get_field(params.requested_schema, "properties"))
    return method != ELICITATION or not is_form


def render_response(method: str, params: ServerRequestParams, verdict: Verdict) -> dict[str, Any]:
    """The response that Codex expects. A yes is for this once: Outrider keeps the permissions that reach further."""
    is_yes = verdict == "allow"
    match method:
        case "item/permissions/requestApproval":
            return {"permissions": params.permissions if is_yes else {}, "scope": "turn"}
        case "mcpServer/elicitation/request":
            return {"action": "accept", "content": {}} if is_yes else {"action": "decline"}
        case _:
            return {"decision": "accept" if is_yes else "decline"}


def _needs(permissions: Any) -> tuple[str, ...]:
    """Only the network when nothing else is requested; else everything."""
    kinds = {name for name in ("network", "fileSystem") if get_field(permissions, name)}
    return (NETWORK,) if kinds == {"network"} else (HOST,)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


class ServerRequests:
    """Responds to the requests of one turn. Approvals and tool calls are dealt with one at a time, in their order."""

    def __init__(
        self,
        turn: Turn,
        server: AppServer,
        recorder: TurnRecorder,
        tracker: ItemTracker,
        watchdog: TurnWatchdog,
        approvals: ApprovalGate,
        tool_runner: OwnToolRunner,
        group: TaskGroup,
    ) -> None:
        """The tasks in `group` that deal with the requests raise ApprovalSuspended when nobody answers in time."""
        self._turn = turn
        self._server = server
        self._recorder = recorder
        self._tracker = tracker
        self._watchdog = watchdog
        self._approvals = approvals
        self._tool_runner = tool_runner
        self._group = group
        self._one_at_a_time = anyio.Lock()

    def handle(self, request: RpcRequest) -> None:
        """Start a task that responds. Codex waits for the response without a limit."""
        params = parse_server_request(request.params)
        if not params.thread_id and params.turn_id != self._tracker.turn_id:
            self._group.start_soon(self._reject, request, "it does not say which thread it belongs to")
            return
        thread = self._server.thread(params.thread_id)
        if request.method == TOOL_CALL:
            self._tool_called(request, params)
        elif request.method == ELICITATION and params.server_name == SERVER and thread and thread.mcp_session:
            # Outrider asks whether the call may run when it arrives.
            response = render_response(ELICITATION, params, "allow")
            self._group.start_soon(self._server.respond, request.id, response)
        elif request.method in QUESTION_METHODS and is_yes_no(request.method, params):
            self._tracker.asked_items.add(params.item_id)
            self._group.start_soon(self._in_order, self._decide, request, params)
        elif request.method == ELICITATION:
            self._emit_note(f"declined: {params.server_name or 'an MCP server'} asks for more than a yes or no")
            self._group.start_soon(self._server.respond, request.id, {"action": "decline"})
        else:
            log.warning("Codex sent the request %s, which Outrider does not support", request.method)
            self._emit_note(f"Codex asked for what Outrider does not support: {request.method or '(no name)'}")
            self._group.start_soon(self._reject, request, "not supported by Outrider")

    def _tool_called(self, request: RpcRequest, params: ServerRequestParams) -> None:
        arguments = parse_arguments(params.arguments)
        send_result = partial(self._send_tool_result, request)
        if arguments is None or not params.tool:
            self._emit_note("Codex called one of Outrider's tools, and Outrider could not read how; it was not run")
            unread = Result(params.call_id, "not run: Outrider could not read the call", failed=True)
            self._group.start_soon(send_result, unread)
            return
        call = parse_our_call(params.call_id or _own_item_id(params, request.id), params.tool, arguments)
        self._group.start_soon(self._in_order, self._run_tool, call, send_result)

    def run_mcp_call(self, pending: PendingCall) -> None:
        """Start a task that runs a call of one of our tools that came over MCP."""
        if not pending.id:
            log.warning("a call over MCP is not run: this Codex does not send its id")
            pending.answer("not run: it did not say which call this is (_meta.callId)", failed=True)
            return

        async def send_result(result: Result) -> None:
            images = f"\n[{plural(len(result.images), 'image')} left out here]" if result.images else ""
            pending.answer(result.text + images, failed=result.failed)

        call = parse_our_call(pending.id, pending.tool, pending.args)
        self._group.start_soon(self._in_order, self._run_mcp_tool, call, send_result)

    async def _in_order(self, respond: Callable[..., Awaitable[None]], *args: Any) -> None:
        self._watchdog.answer_pending(anyio.current_time())
        try:
            async with self._one_at_a_time:
                await respond(*args)
        finally:
            self._watchdog.answer_sent(anyio.current_time())

    async def _decide(self, request: RpcRequest, params: ServerRequestParams) -> None:
        """Record the call that the request is about, decide whether it may run, record that, and respond."""
        workspace = self._turn.session.workspace
        item = self._item_of(params)
        external = call_of_item(item) if item else None
        external = external or call_of_request(request.method, params, request.id, workspace)
        call = await self._recorder.call_announced(external, is_held=True)

        policy = (self._server.thread(params.thread_id) or LoadedThread("", "")).sandbox_policy
        raw_call = self._tracker.raw_calls.get(params.item_id)
        if raw_call is None and request.method == COMMAND and policy.is_enforced:
            raw_call = await find_rollout_call(policy.rollout_path, params.item_id)
        context = ApprovalContext(workspace, policy, raw_call)
        if unread := unread_parts(request.method, params, item):
            decision = AccessDecision("deny", f"Outrider cannot read what Codex asks for ({', '.join(unread)})")
            log.warning("%s was denied: %s", request.method, decision.reason)
            self._emit_note(f"denied: {decision.reason}")
        else:
            asked = parse_approval_request(request.method, params, item, context)
            decision = await self._approvals.decide(call, asked)
        if decision.verdict != "allow":
            await self._recorder.call_finished(external, CallOutcome(f"not run: {decision.reason}", failed=True))
        elif request.method == PERMISSIONS:
            # No item will report the outcome.
            await self._recorder.call_finished(external, CallOutcome("allowed"), starts_now=True)
        else:
            await self._recorder.call_started(external.item_id)
        await self._server.respond(request.id, render_response(request.method, params, decision.verdict))

    def _item_of(self, params: ServerRequestParams) -> ThreadItem | None:
        """The item that a request is about; for the request of an MCP server, which names none, its newest call."""
        if params.item_id:
            return self._tracker.open_items.get(params.item_id)
        for item in reversed(self._tracker.open_items.values()):
            if params.server_name and item.server == params.server_name:
                self._tracker.asked_items.add(item.id)
                return item
        return None

    async def _run_mcp_tool(self, external: ExternalCall, send_result: SendResult) -> None:
        # MCP is a connection of its own, so what Codex reported before this call may not have been read yet.
        with anyio.move_on_after(_REPORT_TIMEOUT):
            await self._tracker.mcp_call_started(external.item_id).wait()
        await self._run_tool(external, send_result)

    async def _run_tool(self, external: ExternalCall, send_result: SendResult) -> None:
        """Run a call of one of our tools, after a person has allowed it where that is needed."""
        if self._recorder.has_seen(external.item_id):
            # Codex gave it up while it waited for its turn.
            await send_result(Result(external.item_id, "not run: Codex has ended this call already", failed=True))
            return
        call = await self._recorder.call_announced(external, is_held=True)
        while (result := await self._tool_runner.run(self._turn, call)) is None:
            await self._approvals.deny_unreachable()
            await self._approvals.wait_for_answers(call)
        await self._recorder.call_returned(external.item_id)
        await send_result(result)

    async def _send_tool_result(self, request: RpcRequest, result: Result) -> None:
        content = {"contentItems": self._tool_runner.render_content(result), "success": not result.failed}
        await self._server.respond(request.id, content)

    def _emit_note(self, text: str) -> None:
        self._turn.emit(Delta(text, "note"))

    async def _reject(self, request: RpcRequest, reason: str) -> None:
        await self._server.respond_error(request.id, RpcError(METHOD_NOT_FOUND, reason))
