"""One run of a turn in an ACP agent: opens or resumes the agent's session, closes interrupted calls, and prompts."""

import base64
import logging
import math
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext

import anyio
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectReceiveStream

from outrider.core.errors import Refused, Unavailable
from outrider.core.events import Bound, Delta, Reply
from outrider.core.ports import Turn
from outrider.core.prompt import UNKNOWN, AssistantMessage, Message, UserMessage
from outrider.core.types import Call, Image, Usage
from outrider.runtimes.acp.connection import AcpAgent, RunningPrompt
from outrider.runtimes.acp.errors import (
    AUTH_REQUIRED,
    CANNOT_RESUME,
    explain_stop,
    find_login_errors,
    is_login_message,
    wants_login,
)
from outrider.runtimes.acp.own_calls import OwnCalls, OwnTools
from outrider.runtimes.acp.prompt import (
    ALLOWED,
    NAME,
    OUTCOME_UNKNOWN,
    InterruptedCall,
    PromptStart,
    build_prompt,
    is_interrupted,
    prompt_name,
)
from outrider.runtimes.acp.protocol import PromptResponse, SessionUpdate
from outrider.runtimes.acp.tool_calls import (
    FINAL_STATUSES,
    AcpToolCall,
    apply_update,
    external_call_of,
    outcome_of,
)
from outrider.runtimes.acp.updates import UpdateReader
from outrider.runtimes.base import RuntimeContext
from outrider.runtimes.external.approvals import (
    ApprovalGate,
    ApprovalSuspended,
    JournalWatcher,
    withdraw_stale_questions,
)
from outrider.runtimes.external.history import render_history
from outrider.runtimes.external.own_tools import is_our_call
from outrider.runtimes.external.recorder import CallOutcome, TurnRecorder, external_call_id
from outrider.runtimes.jsonrpc.errors import ProcessExited, RpcError
from outrider.runtimes.mcp_server import McpSession, PendingCall
from outrider.system.task_groups import background_group

_ALIVE_TIMEOUT = 5.0
"""Seconds that an agent has at least to answer a ping."""
_NO_RESULT = "the agent did not report a result"
_LOGIN_CHECK = 2.0
"""Seconds between two checks whether the agent only repeats that its login is rejected."""
_MAX_LOGIN_ERRORS = 3
log = logging.getLogger("outrider.acp")
_NOT_RUN = "not run: the turn was suspended until the question was answered"


class AcpTurnRun:
    def __init__(self, turn: Turn, agent: AcpAgent, context: RuntimeContext, own_tools: OwnTools) -> None:
        self._turn = turn
        self._agent = agent
        self._context = context
        self._own_tools = own_tools
        self._recorder = TurnRecorder(turn, NAME, context.tool_environment.redact, context.blobs.put)
        self._login_error = ""
        self._journal = JournalWatcher(turn)
        self._approvals = ApprovalGate(turn, context.tool_environment, self._journal, asks_before_running=True)

    async def run(self, *, has_died: bool = False) -> None:
        """Prompt the agent with what it has not seen, and read its updates to the end.

        `has_died`: the agent died during this turn, and this is another process. Raises ApprovalSuspended, Refused,
        RpcError, Unavailable; PromptFailed when the prompt failed; AgentDied when the agent died and can resume.
        """
        bound = self._turn.state().threads.get(NAME)
        was_interrupted = has_died or is_interrupted(self._turn.state(), bound.turn if bound else "")
        thread, replayed = await self._open_session(bound, was_interrupted=was_interrupted)
        if mode := self._turn.state().settings.get("acp.mode") or self._context.config.acp.mode:
            await self._agent.set_mode(thread, mode)
        is_new = bound is None or bound.thread != thread
        interrupted = await self._close_interrupted_calls(bound, replayed)
        history = self._unseen_history(bound if bound and not is_new else None)
        state = self._turn.state()
        rendered = render_history(history, self._load_image if self._agent.info.accepts_images else None)
        start = build_prompt(state, self._turn.transcript(), rendered, interrupted if was_interrupted else None)
        if history:
            self._emit_note(f"{self._agent.name} receives what was said and done in this session before")
        name = prompt_name(state)
        self._recorder.input_seen(start.saw)
        blocks = self._content_blocks(start)
        await self._turn.record(Bound(NAME, thread, name, start.saw))
        prompt_id = f"{thread}/{name}"
        own_calls = OwnCalls(self._turn, self._recorder, self._approvals, self._own_tools.runner, prompt_id)
        updates = UpdateReader(self._turn, self._agent, self._recorder, self._approvals, own_calls, prompt_id)
        prompt = await self._prompt(thread, blocks, updates)
        await self._finish(thread, prompt, updates, may_restart=not has_died)

    async def _open_session(self, bound: Bound | None, *, was_interrupted: bool) -> tuple[str, Sequence[SessionUpdate]]:
        """The session to prompt, and the tool calls that the agent replayed of it."""
        agent, folder = self._agent, self._turn.session.workspace
        if bound and bound.thread in agent.sessions:
            return bound.thread, ()
        if bound and (agent.info.can_load or agent.info.can_resume):
            try:
                async with self._offer_tools() as tools:
                    replayed = await agent.load_session(bound.thread, folder, tools, with_replay=was_interrupted)
                return bound.thread, replayed
            except RpcError as error:
                if wants_login(error):
                    raise
                reason = f"{agent.name} could not resume its session: {error}"
        else:
            reason = f"{agent.name} cannot resume a session of an earlier process"
        if bound and was_interrupted and not self._only_waits():
            await self._close_interrupted_calls(bound, (), can_continue=False)
            await self._recorder.close()
            raise Refused(f"{CANNOT_RESUME} ({reason})")
        if bound:
            self._emit_note(f"{reason}. A new one starts")
        async with self._offer_tools() as tools:
            return await agent.open_session(folder, tools), ()

    def _only_waits(self) -> bool:
        """Whether all that is left open of the turn are calls that waited for an answer: then all that was done is
        known, and another session can continue with it."""
        state = self._turn.state()
        answered = {call.id for call in state.calls if state.answers_about(call.id)}
        return bool(answered) and not {call.id for call in state.calls} - (answered - (state.begun - state.asked_again))

    @asynccontextmanager
    async def _offer_tools(self) -> AsyncGenerator[McpSession | None]:
        """Our tools for a session of the agent, if it can use them; its token is revoked when the block fails."""
        session = None
        try:
            session = await self._own_tools.open_session(self._turn) if self._agent.info.connects_to_http else None
        except OSError as error:
            log.warning("%s gets none of Outrider's tools: %s", self._agent.name, error)
        try:
            yield session
        except BaseException:
            if session:
                session.close()
            raise

    def _unseen_history(self, bound: Bound | None) -> Sequence[Message]:
        """What the agent's session has not seen of ours; everything when it is new."""
        state, transcript = self._turn.state(), self._turn.transcript()
        if bound is None:
            return transcript.before(state.head)
        # The agent itself did what is in this turn so far.
        return transcript.after(bound.saw) if not state.steps else ()

    async def _close_interrupted_calls(
        self, bound: Bound | None, replayed: Sequence[SessionUpdate], *, can_continue: bool = True
    ) -> list[InterruptedCall]:
        """Close the calls that an earlier run of this turn left open; those whose outcome is not in the replay.

        Calls of our tools that have not begun are run now, if the turn `can_continue`. Raises ApprovalSuspended.
        """
        prompt = f"{bound.thread}/{bound.turn}" if bound else ""
        calls: dict[str, AcpToolCall] = {}
        for update in replayed:
            calls[update.tool_call_id] = apply_update(calls.get(update.tool_call_id), update)
        recorded = self._recorded_calls()
        by_id = {external_call_id(NAME, external_call_of(call, prompt).item_id): call for call in calls.values()}
        # In its replay, an agent may give calls other ids; then nothing says which of them are in the journal.
        has_own_ids = not recorded or bool(recorded & by_id.keys())
        ended = {id: call for id, call in by_id.items() if call.status in FINAL_STATUSES and has_own_ids}
        state, interrupted = self._turn.state(), list[InterruptedCall]()
        for call in state.calls:
            answers = state.answers_about(call.id)
            if is_our_call(call, self._own_tools.runner.tools_of(self._turn)):
                interrupted.append(await self._finish_own_call(call, can_continue=can_continue))
            elif answers and call.id not in state.begun - state.asked_again:
                self._approvals.remember(answers)
                decision = answers[-1].decision
                note = ALLOWED if decision.verdict == "allow" else f"{decision.reason}: do without it"
                interrupted.append(InterruptedCall(call, note))
                await self._recorder.finish_inherited_call(call, CallOutcome(_NOT_RUN, failed=True))
            elif tool_call := ended.pop(call.id, None):
                reported = external_call_of(tool_call, prompt)
                await self._recorder.finish_inherited_call(call, outcome_of(tool_call), reported)
            else:
                interrupted.append(InterruptedCall(call, OUTCOME_UNKNOWN))
                await self._recorder.finish_inherited_call(call, CallOutcome(UNKNOWN, failed=True))
        for tool_call in ended.values():
            await self._recorder.call_finished(external_call_of(tool_call, prompt), outcome_of(tool_call))
        return interrupted

    def _recorded_calls(self) -> set[str]:
        """The calls of this turn that are in the journal."""
        messages = self._turn.transcript().before(self._turn.state().head)
        ids: set[str] = set()
        for message in messages:
            if isinstance(message, UserMessage):
                ids.clear()
            elif isinstance(message, AssistantMessage):
                ids |= {call.id for call in message.calls}
        return ids

    async def _finish_own_call(self, call: Call, *, can_continue: bool) -> InterruptedCall:
        """Run a call of one of our tools, or find out what became of it."""
        runner = self._own_tools.runner
        if call.id in self._turn.state().begun:
            result = await runner.reconcile(self._turn, call)
        elif not can_continue:
            await self._recorder.finish_inherited_call(call, CallOutcome(_NOT_RUN, failed=True))
            return InterruptedCall(call, _NOT_RUN)
        else:
            result = await runner.run(self._turn, call)
            while result is None and await self._approvals.deny_unreachable():
                result = await runner.run(self._turn, call)
            if result is None:
                raise ApprovalSuspended
        return InterruptedCall(call, f"Outrider has dealt with it, and its result is: {result.text}")

    def _content_blocks(self, start: PromptStart) -> list[Mapping[str, str]]:
        texts = [start.preamble] if start.preamble else []
        images = [_image_block(image.media, image.content) for image in start.preamble_images]
        for message in start.inputs:
            texts.append(message.text if message.source == "person" else f"[notice] {message.text}")
            for image in message.images:
                if not self._agent.info.accepts_images:
                    texts.append("[an image, which you do not support]")
                    continue
                images.append(_image_block(image.media, self._load_image(image)))
        return [{"type": "text", "text": "\n\n".join(texts)}, *images]

    def _load_image(self, image: Image) -> bytes:
        return self._context.blobs.get(image.blob)

    async def _prompt(self, thread: str, blocks: Sequence[Mapping[str, str]], updates: UpdateReader) -> RunningPrompt:
        """Run a prompt to its end. It is cancelled when anything ends this early."""
        agent = self._agent

        async def wait_for_end() -> None:
            await prompt.wait_done()
            updates.cancel_question()
            await agent.wait_drained(thread, prompt)

        with self._receive_own_calls(thread) as own_calls:
            prompt = agent.prompt(thread, blocks)
            try:
                async with agent.subscribe(thread) as messages, background_group() as group:
                    group.start_soon(self._journal.listen, lambda: None)
                    group.start_soon(wait_for_end)
                    group.start_soon(self._run_watchdog, updates)
                    group.start_soon(updates.confirm_starts)
                    group.start_soon(self._watch_login, thread, prompt, updates)
                    group.start_soon(_run_own_calls, own_calls, updates, group)
                    async for message in messages:
                        await updates.handle(message)
            finally:
                if not prompt.is_done:
                    await agent.cancel(thread, prompt, updates.pending_requests)
        return prompt

    @contextmanager
    def _receive_own_calls(self, thread: str) -> Generator[MemoryObjectReceiveStream[PendingCall]]:
        """The calls of our tools that the agent makes in this session from now on."""
        session = self._agent.mcp_sessions.get(thread)
        sender, receiver = anyio.create_memory_object_stream[PendingCall](math.inf)
        with sender, receiver, session.deliver_to(sender.send_nowait) if session else nullcontext():
            yield receiver

    async def _run_watchdog(self, updates: UpdateReader) -> None:
        """Ping the agent when it is silent without a reason, and retire it when it does not answer."""
        quiet = float(self._context.config.acp.quiet)
        while True:
            silent = anyio.current_time() - updates.last_activity
            if silent < quiet or updates.is_waiting:
                await anyio.sleep(max(quiet - silent, 1.0))
                continue
            if not await self._agent.ping(min(max(quiet, _ALIVE_TIMEOUT), 6 * _ALIVE_TIMEOUT)):
                self._agent.retire(f"was silent for {quiet:g} s and does not answer, so it was ended (acp.quiet)")
                return
            self._emit_note(f"{self._agent.name} has been silent for {quiet:g} s; it is running and answers")
            updates.note_activity()

    async def _watch_login(self, thread: str, prompt: RunningPrompt, updates: UpdateReader) -> None:
        """Cancel a prompt in which the agent has done nothing but try a login that is rejected, again and again."""
        before = self._agent.stderr_tail()
        while not updates.has_worked:
            log = self._agent.stderr_tail()
            errors = [*updates.login_errors, *find_login_errors(log.removeprefix(before))]
            if len(errors) >= _MAX_LOGIN_ERRORS:
                self._login_error = errors[-1]
                await self._agent.cancel(thread, prompt, updates.pending_requests)
                return
            await anyio.sleep(_LOGIN_CHECK)

    def _rejected_login(self, prompt: RunningPrompt, updates: UpdateReader) -> str:
        """What the agent said when its login was rejected, instead of working; empty when it worked."""
        match prompt.outcome:
            # A model that answers with such words has used tokens.
            case PromptResponse() as answered if (
                is_login_message(updates.only_message) and answered.tokens() == Usage()
            ):
                return updates.only_message
            case _:
                return self._login_error

    async def _finish(self, thread: str, prompt: RunningPrompt, updates: UpdateReader, *, may_restart: bool) -> None:
        can_resume = self._agent.info.can_load or self._agent.info.can_resume
        if rejected := self._rejected_login(prompt, updates):
            await self._recorder.close()
            raise PromptFailed(RpcError(AUTH_REQUIRED, rejected))
        match prompt.outcome:
            case PromptResponse(stop_reason=reason) as response:
                self._recorder.add_usage(response.tokens())
                await updates.close_open_calls(_NO_RESULT, failed=False)
                # Recorded before the last message, so that a journal with the last message also has the prompt's end.
                await self._turn.record(Bound(NAME, thread, saw=self._recorder.saw))
                await updates.finish_message()
                await self._close()
                if cut := explain_stop(reason):
                    await self._turn.record(Reply("", self._recorder.saw, cut=cut))
                if reason == "cancelled":
                    raise Refused(f"{self._agent.name} reported this turn as cancelled, but nobody had stopped it")
            case ProcessExited() as exited if may_restart and can_resume:
                raise AgentDied(str(exited)) from exited
            case RpcError() | Unavailable() as error:
                await updates.close_open_calls(UNKNOWN)
                await updates.finish_message()
                await self._close()
                raise PromptFailed(error)
            case None:
                raise Unavailable(f"{self._agent.name} does not respond and was ended")

    async def _close(self) -> None:
        """Close what is open. The agent has ended its turn, so it waits for no answer any more."""
        await self._recorder.close()
        await withdraw_stale_questions(self._turn, asks_before_running=True)

    def _emit_note(self, text: str) -> None:
        self._turn.emit(Delta(text, "note"))


def _image_block(media: str, content: bytes) -> Mapping[str, str]:
    return {"type": "image", "data": base64.b64encode(content).decode(), "mimeType": media}


async def _run_own_calls(
    calls: MemoryObjectReceiveStream[PendingCall], updates: UpdateReader, group: TaskGroup
) -> None:
    async for call in calls:
        group.start_soon(updates.run_own_call, call)


class AgentDied(Exception):
    """The agent died during a prompt. Its open calls are still open."""


class PromptFailed(Exception):
    """A prompt ended with this error, after everything before it was recorded."""

    def __init__(self, error: RpcError | Unavailable) -> None:
        super().__init__(str(error))
        self.error = error
