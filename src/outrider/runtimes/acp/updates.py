"""Reader of an ACP agent's updates during a prompt: shows and records them, and answers permission requests."""

import secrets

import anyio

from outrider.core.approvals import AccessDecision
from outrider.core.events import Delta
from outrider.core.ports import Turn
from outrider.runtimes.acp.connection import AcpAgent, SessionMessage
from outrider.runtimes.acp.protocol import PermissionRequest, SessionUpdate, ToolCallUpdate
from outrider.runtimes.acp.tool_calls import (
    FINAL_STATUSES,
    AcpToolCall,
    apply_update,
    approval_request_of,
    choose_option,
    content_text,
    external_call_of,
    outcome_of,
    render_plan,
)
from outrider.runtimes.external.approvals import ApprovalGate
from outrider.runtimes.external.recorder import CallOutcome, ExternalCall, TurnRecorder, clip_middle
from outrider.runtimes.jsonrpc.connection import RequestId
from outrider.runtimes.tool_runner import render_denial
from outrider.system.failpoints import failpoint

MAX_MESSAGE = 1_000_000
"""Characters of one message; of a longer one, the beginning and the end are recorded."""
_NOT_ONCE = "not run: it was allowed, but the agent has no option to allow it only once"
_GAVE_UP = "not run: the agent stopped waiting for an answer"


class UpdateReader:
    """Reads the messages of one prompt."""

    def __init__(
        self, turn: Turn, agent: AcpAgent, recorder: TurnRecorder, approvals: ApprovalGate, prompt_id: str
    ) -> None:
        """`prompt_id` makes the ids of its calls unique; see `external_call_of`."""
        self._turn = turn
        self._agent = agent
        self._recorder = recorder
        self._approvals = approvals
        self._prompt_id = prompt_id
        self.pending_requests: list[RequestId] = []
        """The permission request that waits for its answer."""
        self._last_activity = anyio.current_time()
        self._question_scope = anyio.CancelScope()
        self._is_over = False
        self._calls: dict[str, AcpToolCall] = {}
        self._open: set[str] = set()
        self._ended: set[str] = set()
        self._text: list[str] = []
        self._message: str | None = None
        self._message_count = 0
        # Ids of messages are not reliable, and no message is ever read a second time.
        self._run_id = secrets.token_hex(4)

    @property
    def is_waiting(self) -> bool:
        """Whether the agent has a reason to be silent: a question is open, or a tool is running."""
        return bool(self.pending_requests or self._open)

    @property
    def last_activity(self) -> float:
        return self._last_activity

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
            await self._request_permission(*message)
            return
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

    async def close_open_calls(self, reason: str) -> None:
        """Close the open calls with this text: the prompt has ended."""
        for call in sorted(self._open):
            await self._finish_call(
                call, external_call_of(self._calls[call], self._prompt_id), CallOutcome(reason, failed=True)
            )
        await self._recorder.flush()

    def _message_chunk(self, update: SessionUpdate) -> None:
        text = content_text(update.content)
        is_next = bool(self._text and self._message and update.message_id) and self._message != update.message_id
        self._message = update.message_id
        for piece in ("\n\n", text) if is_next else (text,):
            if piece:
                self._text.append(piece)
                self._turn.emit(Delta(piece))
                failpoint("mid_reply")

    async def _update_call(self, update: ToolCallUpdate) -> tuple[AcpToolCall, ExternalCall]:
        """The call after this update. Text before a new call is a reply of its own."""
        before = self._calls.get(update.tool_call_id)
        tool_call = self._calls[update.tool_call_id] = apply_update(before, update)
        external = external_call_of(tool_call, self._prompt_id)
        if before is None:
            await self.finish_message()
            self._turn.emit(Delta(external.tool, "call"))
        return tool_call, external

    async def _tool_call_changed(self, update: ToolCallUpdate) -> None:
        if not update.tool_call_id or update.tool_call_id in self._ended:
            return
        tool_call, external = await self._update_call(update)
        if tool_call.status in FINAL_STATUSES:
            await self._finish_call(tool_call.id, external, outcome_of(tool_call))
        elif tool_call.id in self._open:
            if update.status == "in_progress":
                await self._recorder.call_started(external.item_id)
        elif tool_call.status == "in_progress" or (tool_call.is_specified and not self._open):
            # While it is pending, the agent may still request a permission for it.
            self._open.add(tool_call.id)
            await self._recorder.call_announced(external, has_begun=tool_call.status == "in_progress")

    async def _finish_call(self, call: str, external: ExternalCall, outcome: CallOutcome) -> None:
        self._calls.pop(call, None)
        self._open.discard(call)
        self._ended.add(call)
        await self._recorder.call_finished(external, outcome)

    async def _request_permission(self, number: RequestId, permission: PermissionRequest) -> None:
        """Decide one request at a time; the updates after it wait."""
        tool_call, external = await self._update_call(permission.tool_call)
        self.pending_requests.append(number)
        call = await self._recorder.call_announced(external, is_held=True)
        self._open.add(tool_call.id)
        decision = AccessDecision("deny")
        with anyio.CancelScope() as self._question_scope:
            if self._is_over:
                self._question_scope.cancel()
            decision = await self._approvals.decide(call, approval_request_of(tool_call, self._turn.session.workspace))
        if self._question_scope.cancelled_caught:
            await self._approvals.withdraw(call)
            await self._finish_call(tool_call.id, external, CallOutcome(_GAVE_UP, failed=True))
            return
        is_allowed = decision.verdict == "allow"
        option = choose_option(permission.options, is_allowed=is_allowed)
        if is_allowed and option:
            await self._recorder.call_started(external.item_id)
        else:
            reason = _NOT_ONCE if is_allowed else render_denial(decision.reason)
            await self._finish_call(tool_call.id, external, CallOutcome(reason, failed=True))
        option = option or choose_option(permission.options, is_allowed=False)
        await self._agent.answer_permission(number, option.option_id if option else "")
        self.pending_requests.remove(number)
        self.note_activity()
