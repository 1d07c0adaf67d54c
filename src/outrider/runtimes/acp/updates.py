"""Takes what an agent says in one prompt: shows it at once, writes it down in order, and answers its questions."""

import secrets

import anyio
from msgspec import Struct

from outrider.core.approvals import NO, Verdict
from outrider.core.events import Answered, Delta
from outrider.core.ports import Turn
from outrider.core.types import Call
from outrider.runtimes.acp.connection import AcpAgent, SessionMessage
from outrider.runtimes.acp.protocol import PermissionOption, PermissionRequest, SessionUpdate, ToolCallUpdate
from outrider.runtimes.acp.tool_calls import (
    FINAL_STATUSES,
    AcpToolCall,
    apply_update,
    approval_request_of,
    choose_option,
    content_text,
    external_call_of,
    is_same_call,
    outcome_of,
    render_plan,
)
from outrider.runtimes.external.approvals import ApprovalGate
from outrider.runtimes.external.recorder import CallOutcome, ExternalCall, TurnRecorder, clip_middle
from outrider.runtimes.jsonrpc.connection import RequestId
from outrider.runtimes.tool_runner import DENIED
from outrider.system.failpoints import failpoint

MAX_MESSAGE = 1_000_000
"""Characters of one message that are kept; of more, the beginning and the end."""
_NOT_ONCE = "not run: it was allowed, and the agent offers no way to allow it only once"
_GAVE_UP = "not run: the agent stopped waiting for an answer"


class EarlierAnswer(Struct, frozen=True):
    """A person's answer about a call that was cut off: it holds for the very same, once more, without asking."""

    call: Call
    verdict: Verdict

    def matches(self, call: Call) -> bool:
        return self.call.tool == call.tool and is_same_call(self.call.args, call.args)


class UpdateReader:
    """What is said in one prompt."""

    def __init__(
        self, turn: Turn, agent: AcpAgent, ledger: TurnRecorder, asking: ApprovalGate, answered: list[EarlierAnswer]
    ) -> None:
        self._turn = turn
        self._agent = agent
        self._recorder = ledger
        self._approvals = asking
        self._earlier_answers = answered
        self.prompt_id = ""
        """Where its calls are made; see `deed_of`."""
        self.pending_requests: list[RequestId] = []
        """The question that waits for its answer."""
        self.last_activity = anyio.current_time()
        """When something was heard last."""
        self._question_scope = anyio.CancelScope()
        self._is_over = False
        self._calls: dict[str, AcpToolCall] = {}
        self._open: set[str] = set()
        self._ended: set[str] = set()
        self._text: list[str] = []
        self._message: str | None = None
        self._message_count = 0
        # Messages have no ids that could be relied on, and none is ever read a second time.
        self._run_id = secrets.token_hex(4)

    @property
    def is_waiting(self) -> bool:
        """Whether the agent has a reason to be silent: a question is open, or a tool runs."""
        return bool(self.pending_requests or self._open)

    def cancel_question(self) -> None:
        """The prompt is over: nobody there waits for an answer any more."""
        self._is_over = True
        self._question_scope.cancel()

    async def handle(self, message: SessionMessage) -> None:
        """Raises Parked when a question stays unanswered for long."""
        self.last_activity = anyio.current_time()
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
        """What was said up to here is one reply."""
        text, self._text = "".join(self._text), []
        if text.strip():
            self._message_count += 1
            await self._recorder.message_finished(
                f"{self.prompt_id}/{self._run_id}/{self._message_count}", clip_middle(text, MAX_MESSAGE)
            )

    async def close_open_calls(self, why: str) -> None:
        """The prompt is over: of what is open, no more will be told than this."""
        for call in sorted(self._open):
            await self._finish_call(
                call, external_call_of(self._calls[call], self.prompt_id), CallOutcome(why, failed=True)
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
        """The call as it stands after this. Words said before a call are a reply of their own."""
        before = self._calls.get(update.tool_call_id)
        wanted = self._calls[update.tool_call_id] = apply_update(before, update)
        deed = external_call_of(wanted, self.prompt_id)
        if before is None:
            await self.finish_message()
            self._turn.emit(Delta(deed.tool, "call"))
        return wanted, deed

    async def _tool_call_changed(self, update: ToolCallUpdate) -> None:
        if not update.tool_call_id or update.tool_call_id in self._ended:
            return
        wanted, deed = await self._update_call(update)
        if wanted.status in FINAL_STATUSES:
            await self._finish_call(wanted.id, deed, outcome_of(wanted))
        elif wanted.id in self._open:
            if update.status == "in_progress":
                await self._recorder.call_started(deed.item_id)
        elif wanted.status == "in_progress" or (wanted.is_specified and not self._open):
            # While it is pending, the agent may still ask for it.
            self._open.add(wanted.id)
            await self._recorder.call_announced(deed, is_sure=wanted.status == "in_progress")

    async def _finish_call(self, call: str, deed: ExternalCall, outcome: CallOutcome) -> None:
        self._calls.pop(call, None)
        self._open.discard(call)
        self._ended.add(call)
        await self._recorder.call_finished(deed, outcome)

    async def _request_permission(self, number: RequestId, permission: PermissionRequest) -> None:
        """One question at a time; what else is said waits meanwhile."""
        wanted, deed = await self._update_call(permission.tool_call)
        self.pending_requests.append(number)
        call = await self._recorder.call_announced(deed, is_held=True)
        self._open.add(wanted.id)
        verdict: Verdict = "deny"
        with anyio.CancelScope() as self._question_scope:
            if self._is_over:
                self._question_scope.cancel()
            verdict = self._earlier_verdict(call) or await self._verdict(call, wanted)
        if self._question_scope.cancelled_caught:
            await self._turn.record(Answered(f"ask-{call.id}", NO), key=f"answer/ask-{call.id}")
            await self._finish_call(wanted.id, deed, CallOutcome(_GAVE_UP, failed=True))
            return
        is_allowed = verdict == "allow"
        option = choose_option(permission.options, is_allowed=is_allowed)
        if is_allowed and option:
            await self._recorder.call_started(deed.item_id)
        else:
            await self._finish_call(wanted.id, deed, CallOutcome(_NOT_ONCE if is_allowed else DENIED, failed=True))
        await self._answer(number, option or choose_option(permission.options, is_allowed=False))

    async def _verdict(self, call: Call, tool_call: AcpToolCall) -> Verdict:
        return await self._approvals.verdict(call, approval_request_of(tool_call, self._turn.session.workspace))

    async def _answer(self, number: RequestId, option: PermissionOption | None) -> None:
        await self._agent.answer_permission(number, option.option_id if option else "")
        self.pending_requests.remove(number)
        self.last_activity = anyio.current_time()

    def _earlier_verdict(self, call: Call) -> Verdict | None:
        found = next((one for one in self._earlier_answers if one.matches(call)), None)
        if found is None:
            return None
        self._earlier_answers.remove(found)
        return found.verdict
