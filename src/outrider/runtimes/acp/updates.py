"""Reader of an ACP agent's updates during a prompt: shows and records them, and answers permission requests."""

import logging
import secrets
from collections.abc import Sequence

import anyio
from msgspec.structs import replace

from outrider.core.approvals import AccessDecision
from outrider.core.events import Begun, Delta
from outrider.core.ports import Turn
from outrider.core.types import Call
from outrider.runtimes.acp.connection import AcpAgent, SessionMessage
from outrider.runtimes.acp.errors import is_login_message
from outrider.runtimes.acp.own_calls import OwnCalls
from outrider.runtimes.acp.prompt import NAME
from outrider.runtimes.acp.protocol import SILENT_UPDATES, PermissionRequest, SessionUpdate, ToolCallUpdate
from outrider.runtimes.acp.tool_calls import (
    FINAL_STATUSES,
    AcpToolCall,
    apply_update,
    approval_request_of,
    choose_option,
    complete_from,
    content_text,
    external_call_of,
    find_same_call,
    outcome_of,
    render_plan,
)
from outrider.runtimes.external.approvals import ApprovalGate
from outrider.runtimes.external.assumed_starts import AssumedStarts
from outrider.runtimes.external.recorder import CallOutcome, ExternalCall, TurnRecorder, clip_middle
from outrider.runtimes.jsonrpc.connection import RequestId
from outrider.runtimes.jsonrpc.decoding import UnreadReporter
from outrider.runtimes.mcp_server import PendingCall
from outrider.runtimes.tool_runner import render_denial
from outrider.system.failpoints import failpoint

MAX_MESSAGE = 1_000_000
"""Characters of one message; of a longer one, the beginning and the end are recorded."""
_UNREAD_TEXT = "[a part of the message that Outrider could not read]"
_OWN_CALL = "a call of one of our tools"
_NOT_ONCE = "not run: it was allowed, but the agent has no option to allow it only once"
_GAVE_UP = "not run: the agent stopped waiting for an answer"
_log = logging.getLogger("outrider.acp")


class UpdateReader:
    """Reads the messages of one prompt."""

    def __init__(
        self,
        turn: Turn,
        agent: AcpAgent,
        recorder: TurnRecorder,
        approvals: ApprovalGate,
        own_calls: OwnCalls,
        prompt_id: str,
    ) -> None:
        """`prompt_id` makes the ids of its calls unique; see `external_call_of`."""
        self._turn = turn
        self._agent = agent
        self._recorder = recorder
        self._approvals = approvals
        self._own_calls = own_calls
        self._own_reports: dict[str, AcpToolCall] = {}
        """The agent's reports of calls of our tools."""
        self._prompt_id = prompt_id
        self.pending_requests: list[RequestId] = []
        """The permission request that waits for its answer."""
        self._last_activity = anyio.current_time()
        self._question_scope = anyio.CancelScope()
        self._is_over = False
        self._calls: dict[str, AcpToolCall] = {}
        """The calls that have not ended, in the order in which they were reported."""
        self._names: dict[str, str] = {}
        """The call that an id of the agent means, where it is not the call's own id."""
        self._asked: set[str] = set()
        """Calls that a permission was requested for."""
        self._unreported: dict[str, AcpToolCall] = {}
        """Calls, ended ones too, of which only a permission request is known."""
        self._announced: set[str] = set()
        """Calls that are in the journal."""
        self._current = ""
        """The call that is open in the journal."""
        self._assumed_starts = AssumedStarts()
        self._ended: set[str] = set()
        self._has_worked = False
        self._login_errors: list[str] = []
        self._text: list[str] = []
        self._message: str | None = None
        self._message_count = 0
        self._unread = UnreadReporter(agent.name, _log, lambda text: turn.emit(Delta(text, "note")))
        # Ids of messages are not reliable, and no message is ever read a second time.
        self._run_id = secrets.token_hex(4)

    @property
    def is_waiting(self) -> bool:
        """Whether the agent has a reason to be silent: a question is pending, or a tool is running."""
        is_busy = self.pending_requests or self._announced & self._calls.keys()
        return bool(is_busy or self._own_calls.is_running)

    @property
    def last_activity(self) -> float:
        return self._last_activity

    @property
    def has_worked(self) -> bool:
        """Whether the agent has reported anything but errors about its login."""
        return self._has_worked

    @property
    def only_message(self) -> str:
        """The agent's message when it has reported nothing else; empty otherwise."""
        return "".join(self._text) if not (self._message_count or self._calls or self._ended) else ""

    @property
    def login_errors(self) -> Sequence[str]:
        """The messages of the agent that are errors about its login, in their order."""
        return self._login_errors

    def note_activity(self) -> None:
        """Silence counts from now."""
        self._last_activity = anyio.current_time()

    def cancel_question(self) -> None:
        """The prompt has ended, so the agent does not wait for an answer any more."""
        self._is_over = True
        self._question_scope.cancel()

    async def handle(self, message: SessionMessage) -> None:
        """Raises ApprovalSuspended when nobody answers a question in time."""
        self.note_activity()
        if not isinstance(message, SessionUpdate):
            self._unread.report("session/request_permission", message[1].unread)
            self._has_worked = True
            await self._request_permission(*message)
            return
        self._unread.report(message.session_update or "session/update", message.unread)
        self._note_work(message)
        match message.session_update:
            case "agent_message_chunk":
                self._message_chunk(message)
            case "agent_thought_chunk":
                self._turn.emit(Delta(content_text(message.content), "reasoning"))
            case "tool_call" | "tool_call_update":
                await self._tool_call_changed(message)
            case "plan":
                if plan := render_plan(message.entries):
                    self._turn.emit(Delta(plan, "note"))
            case "current_mode_update":
                self._turn.emit(Delta(f"{self._agent.name} is now in its mode {message.current_mode_id}", "note"))
            case "" if message.tool_call_id:
                await self._tool_call_changed(message)
            case kind if kind not in SILENT_UPDATES:
                self._unread.report("session/update", [f"the kind `{kind[:100]}`"])
            case _:
                pass

    async def finish_message(self) -> None:
        """Record the text up to here as one reply."""
        text, self._text = "".join(self._text), []
        if text.strip():
            self._message_count += 1
            await self._recorder.message_finished(
                f"{self._prompt_id}/{self._run_id}/{self._message_count}", clip_middle(text, MAX_MESSAGE)
            )

    async def close_open_calls(self, reason: str, *, failed: bool = True) -> None:
        """Close the open calls with this text: the prompt has ended."""
        for call in tuple(self._calls.values()):
            if call.id in self._announced or call.is_specified:
                await self._finish_call(call, CallOutcome(reason, failed))
        await self._recorder.flush()

    async def confirm_starts(self) -> None:
        """Record calls as begun that are reported as running, when no permission is requested for a second.

        Some agents report a call as running and request the permission for it afterwards. Runs until cancelled.
        """

        async def confirm(call: str) -> None:
            if call not in self._asked and call in self._calls:
                await self._recorder.call_assumed_started(self._external(self._calls[call]).item_id)

        await self._assumed_starts.confirm_each(confirm)

    def _note_work(self, update: SessionUpdate) -> None:
        match update.session_update:
            case "agent_message_chunk" | "agent_thought_chunk" if is_login_message(
                text := content_text(update.content)
            ):
                self._login_errors.append(text)
            case "agent_message_chunk" | "agent_thought_chunk" | "tool_call" | "tool_call_update" | "plan":
                self._has_worked = True
            case _:
                pass

    def _message_chunk(self, update: SessionUpdate) -> None:
        text = content_text(update.content) or (_UNREAD_TEXT if "content" in update.unread else "")
        if not self._text:
            # Some agents send empty lines between a call and the text after it.
            text = text.lstrip("\n")
        is_next = bool(self._text and self._message and update.message_id) and self._message != update.message_id
        self._message = update.message_id
        for piece in ("\n\n", text) if is_next else (text,):
            if piece:
                self._text.append(piece)
                self._turn.emit(Delta(piece))
                failpoint("mid_reply")

    async def _call_reported(self, call: AcpToolCall) -> None:
        """Keep the call as it is now. Text before a new call is a reply of its own."""
        is_new = call.id not in self._calls
        self._calls[call.id] = call
        if is_new:
            await self.finish_message()
            self._turn.emit(Delta(self._external(call).tool, "call"))

    async def _tool_call_changed(self, update: ToolCallUpdate) -> None:
        id = self._name_of_report(update)
        if not id or id in self._ended:
            return
        call = replace(apply_update(self._calls.get(id) or self._own_reports.get(id), update), id=id)
        if self._own_calls.recognizes(call) and await self._is_own_call(call):
            return
        await self._call_reported(call)
        if call.status in FINAL_STATUSES:
            await self._finish_call(call, outcome_of(call), starts_now=True)
            return
        await self._announce_next()
        if update.status == "in_progress" and id not in self._asked:
            self._assumed_starts.add(id)

    async def _is_own_call(self, call: AcpToolCall) -> bool:
        """Keep the report of a call of one of our tools. One that ends and never arrived here was not such a call."""
        if call.id not in self._own_reports:
            await self.finish_message()
        self._own_reports[call.id] = call
        self._own_calls.report(call)
        return call.status not in FINAL_STATUSES or self._own_calls.has_arrived(call.id)

    async def run_own_call(self, pending: PendingCall) -> None:
        """Run a call of one of our tools. Raises ApprovalSuspended."""
        await self._own_calls.run(pending, self._hold)
        self._current = ""
        await self._announce_next()
        self.note_activity()

    def _hold(self) -> None:
        """Announce nothing while a call of one of our tools is open in the journal."""
        self._current = _OWN_CALL

    def _name_of_report(self, update: ToolCallUpdate) -> str:
        """The call that this is about. One that a permission was requested for under another id is the same call."""
        id = self._names.get(update.tool_call_id, update.tool_call_id)
        if (
            id not in self._calls
            and id not in self._ended
            and (same := find_same_call(update, self._unreported.values()))
        ):
            id = self._names[update.tool_call_id] = same.id
        self._unreported.pop(id, None)
        return id

    def _name_of_request(self, asked: ToolCallUpdate) -> str:
        """The call that a permission is requested for: by its id, or else the first open one with this content that
        no permission was requested for; or else a call of its own."""
        id = self._names.get(asked.tool_call_id, asked.tool_call_id)
        if id in self._calls and (id == self._current or id not in self._announced):
            return id
        others = [call for call in self._calls.values() if call.id not in self._asked and call.id != id]
        if id not in self._calls and (same := find_same_call(asked, others)):
            self._names[asked.tool_call_id] = same.id
            return same.id
        if id not in self._calls and id not in self._ended:
            return id
        # Its place in the journal is closed: it was denied, or another call had to be asked about meanwhile.
        again = self._names[asked.tool_call_id] = f"{asked.tool_call_id}#{len(self._asked) + 1}"
        if before := self._calls.pop(id, None):
            self._calls[again] = replace(before, id=again)
        return again

    async def _announce_next(self) -> None:
        """Record the first call whose arguments are complete, unless another one is open. It has not begun: the agent
        may still request a permission for it."""
        for call in self._calls.values():
            if not self._current and call.is_specified and call.id not in self._announced:
                self._current = call.id
                self._announced.add(call.id)
                await self._recorder.call_announced(self._external(call), has_begun=False)
                return

    async def _finish_call(self, call: AcpToolCall, outcome: CallOutcome, *, starts_now: bool = False) -> None:
        self._calls.pop(call.id, None)
        self._ended.add(call.id)
        await self._recorder.call_finished(self._external(call), outcome, starts_now=starts_now)
        if self._current == call.id:
            self._current = ""
            await self._announce_next()

    async def _request_permission(self, number: RequestId, permission: PermissionRequest) -> None:
        """Decide one request at a time; the updates after it wait."""
        asked = permission.tool_call
        if self._own_calls.recognizes(apply_update(self._own_reports.get(asked.tool_call_id), asked)):
            option = choose_option(permission.options, is_allowed=True)
            option = option or choose_option(permission.options, is_allowed=False)
            await self._agent.answer_permission(number, option.option_id if option else "")
            return
        async with self._own_calls.one_at_a_time:
            await self._decide(number, permission)

    async def _decide(self, number: RequestId, permission: PermissionRequest) -> None:
        id = self._name_of_request(permission.tool_call)
        before = self._calls.get(id)
        request = approval_request_of(apply_update(before, permission.tool_call), self._turn.session.workspace)
        tool_call = replace(complete_from(permission.tool_call, before), id=id)
        if before is None:
            self._unreported[id] = tool_call
        await self._call_reported(tool_call)
        self.pending_requests.append(number)
        self._asked.add(id)
        self._announced.add(id)
        self._current = id
        external = self._external(tool_call)
        call = await self._recorder.call_announced(external, is_held=True)
        decision = AccessDecision("deny")
        with anyio.CancelScope() as self._question_scope:
            if self._is_over:
                self._question_scope.cancel()
            if unread := permission.unread_parts:
                decision = AccessDecision("deny", f"Outrider cannot read what the agent asks for ({', '.join(unread)})")
                self._turn.emit(Delta(f"denied: {decision.reason}", "note"))
            else:
                decision = await self._approvals.decide(call, request)
        if self._question_scope.cancelled_caught:
            await self._approvals.withdraw(call)
            await self._finish_call(tool_call, CallOutcome(_GAVE_UP, failed=True))
            return
        is_allowed = decision.verdict == "allow"
        option = choose_option(permission.options, is_allowed=is_allowed)
        if is_allowed and option:
            await self._start_call(call, external.item_id)
        else:
            reason = _NOT_ONCE if is_allowed else render_denial(decision.reason)
            await self._finish_call(tool_call, CallOutcome(reason, failed=True))
        option = option or choose_option(permission.options, is_allowed=False)
        await self._agent.answer_permission(number, option.option_id if option else "")
        self.pending_requests.remove(number)
        self.note_activity()

    async def _start_call(self, call: Call, item: str) -> None:
        """Record that an allowed call begins; once more, when it had begun before the agent asked again."""
        await self._recorder.call_started(item)
        state = self._turn.state()
        if call.id in state.asked_again:
            answers = len(state.answers_about(call.id))
            await self._turn.record(Begun(call.id), key=f"{NAME}/{item}/begun/{answers}")

    def _external(self, call: AcpToolCall) -> ExternalCall:
        return external_call_of(call, self._prompt_id)
