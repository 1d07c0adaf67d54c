"""Carries one turn: opens or takes up the agent's session, settles what was cut off, and prompts."""

import base64
from collections.abc import Mapping, Sequence

import anyio

from outrider.core.errors import Refused, Unavailable
from outrider.core.events import Bound, Delta, Reply
from outrider.core.ports import Turn
from outrider.core.prompt import UNKNOWN, Message, UserMessage
from outrider.runtimes.acp.connection import AcpAgent, RunningPrompt
from outrider.runtimes.acp.errors import CANNOT_RESUME, STOP_REASONS, wants_login
from outrider.runtimes.acp.prompt import (
    ALLOWED,
    DENIED,
    NAME,
    OUTCOME_UNKNOWN,
    InterruptedCall,
    PromptStart,
    build_prompt,
    is_interrupted,
    prompt_name,
)
from outrider.runtimes.acp.protocol import PromptResponse, SessionUpdate
from outrider.runtimes.acp.tool_calls import FINAL_STATUSES, AcpToolCall, apply_update, external_call_of, outcome_of
from outrider.runtimes.acp.updates import EarlierAnswer, UpdateReader
from outrider.runtimes.base import RuntimeContext
from outrider.runtimes.external.approvals import ApprovalGate, JournalWatcher
from outrider.runtimes.external.recorder import CallOutcome, TurnRecorder, external_call_id
from outrider.runtimes.jsonrpc.errors import ProcessExited, RpcError
from outrider.runtimes.tool_runner import verdict_of
from outrider.system.tasks import background_group

_ALIVE_TIMEOUT = 5.0
"""Seconds an agent has at least to say that it lives."""
_NO_RESULT = "the agent did not tell what came of this"
_NOT_RUN = "not run: the turn was set aside until the question was answered"


class AcpTurnRun:
    """One turn in the hands of one agent."""

    def __init__(self, turn: Turn, agent: AcpAgent, context: RuntimeContext) -> None:
        self._turn = turn
        self._agent = agent
        self._context = context
        self._recorder = TurnRecorder(turn, NAME, context.tool_environment.redact)
        self._journal = JournalWatcher(turn)
        self._earlier_answers: list[EarlierAnswer] = []
        asking = ApprovalGate(turn, context.tool_environment, self._journal)
        self._updates = UpdateReader(turn, agent, self._recorder, asking, self._earlier_answers)

    async def run(self, *, has_died: bool = False) -> None:
        """Prompt the agent with what it has not seen, and hear it out.

        `has_died`: it died in the midst of this turn and is another one now. Raises Parked, Refused, RpcError,
        Unavailable; Failed when the prompt did; Died when the agent did and can go on in another process.
        """
        bound = self._turn.state().threads.get(NAME)
        is_cut = has_died or is_interrupted(self._turn.state(), bound.turn if bound else "")
        thread, retold = await self._open_session(bound, is_cut=is_cut)
        is_new = bound is None or bound.thread != thread
        unknown = self._unseen_history(bound if bound and not is_new else None)
        known = await self._close_interrupted_calls(bound, retold)
        state = self._turn.state()
        begins = build_prompt(state, self._turn.transcript(), unknown, known if is_cut else None)
        if unknown:
            self._emit_note(f"{self._agent.name} is told what was said here before")
        name = prompt_name(state)
        self._recorder.saw = begins.saw
        self._updates.prompt_id = f"{thread}/{name}"
        blocks = self._content_blocks(begins)
        await self._turn.record(Bound(NAME, thread, name, begins.saw))
        await self._prompt(thread, blocks, may_die=not has_died)

    async def _open_session(self, bound: Bound | None, *, is_cut: bool) -> tuple[str, Sequence[SessionUpdate]]:
        """The session to prompt, and what the agent told of what was done in it last."""
        agent, folder = self._agent, self._turn.session.workspace
        if bound and bound.thread in agent.sessions:
            return bound.thread, ()
        if bound and (agent.info.can_load or agent.info.can_resume):
            try:
                return bound.thread, await agent.load_session(bound.thread, folder, is_retold=is_cut)
            except RpcError as error:
                if wants_login(error):
                    raise
                why = f"{agent.name} could not take up its session: {error}"
        else:
            why = f"{agent.name} cannot take up a session of an earlier process"
        if bound and is_cut:
            await self._close_interrupted_calls(bound, ())
            await self._recorder.close()
            raise Refused(f"{CANNOT_RESUME} ({why})")
        if bound:
            self._emit_note(f"{why}. A new one begins")
        return await agent.open_session(folder), ()

    def _unseen_history(self, bound: Bound | None) -> Sequence[Message]:
        """What was said and done here that the agent's session has not seen; all of it when the session is new."""
        state, transcript = self._turn.state(), self._turn.transcript()
        if bound is None:
            return transcript.before(state.head)
        # What was done in this turn was done by the agent itself.
        return transcript.after(bound.saw) if not state.steps else ()

    async def _close_interrupted_calls(
        self, bound: Bound | None, retold: Sequence[SessionUpdate]
    ) -> list[InterruptedCall]:
        """Close what an earlier owner of this turn left open, and say what is known of it."""
        prompt = f"{bound.thread}/{bound.turn}" if bound else ""
        calls: dict[str, AcpToolCall] = {}
        for update in retold:
            calls[update.tool_call_id] = apply_update(calls.get(update.tool_call_id), update)
        ended = {
            external_call_id(NAME, external_call_of(w, prompt).item_id): w
            for w in calls.values()
            if w.status in FINAL_STATUSES
        }
        state, known = self._turn.state(), list[InterruptedCall]()
        for call in state.calls:
            answer = state.answers.get(call.id)
            if answer is not None and call.id not in state.begun:
                self._earlier_answers.append(EarlierAnswer(call, verdict_of(answer)))
                known.append(InterruptedCall(call, ALLOWED if verdict_of(answer) == "allow" else DENIED))
                await self._recorder.finish_inherited_call(call, CallOutcome(_NOT_RUN, failed=True))
            elif wanted := ended.pop(call.id, None):
                await self._recorder.finish_inherited_call(
                    call, outcome_of(wanted), external_call_of(wanted, prompt).item_id
                )
            else:
                known.append(InterruptedCall(call, OUTCOME_UNKNOWN))
                await self._recorder.finish_inherited_call(call, CallOutcome(UNKNOWN, failed=True))
        for wanted in ended.values():
            await self._recorder.call_finished(external_call_of(wanted, prompt), outcome_of(wanted))
        return known

    def _content_blocks(self, begins: PromptStart) -> list[Mapping[str, str]]:
        texts = [begins.preamble] if begins.preamble else []
        images: list[Mapping[str, str]] = []
        for given in begins.inputs:
            texts.append(_render_input(given))
            for image in given.images:
                if not self._agent.info.accepts_images:
                    texts.append("[a picture that you cannot be shown]")
                    continue
                data = base64.b64encode(self._context.blobs.get(image.blob)).decode()
                images.append({"type": "image", "data": data, "mimeType": image.media})
        return [{"type": "text", "text": "\n\n".join(texts)}, *images]

    async def _prompt(self, thread: str, blocks: Sequence[Mapping[str, str]], *, may_die: bool) -> None:
        agent, hearing = self._agent, self._updates
        prompting = agent.prompt(thread, blocks)
        try:
            async with agent.subscribe(thread) as ear, background_group() as group:
                group.start_soon(self._journal.listen, lambda: None)
                group.start_soon(self._wait_for_end, thread, prompting)
                group.start_soon(self._run_watchdog)
                async for heard in ear:
                    await hearing.handle(heard)
        finally:
            if not prompting.done.is_set():
                await agent.cancel(thread, prompting, hearing.pending_requests)
        await self._finish(thread, prompting, may_die=may_die)

    async def _wait_for_end(self, thread: str, prompting: RunningPrompt) -> None:
        await prompting.done.wait()
        self._updates.cancel_question()
        await self._agent.wait_drained(thread, prompting)

    async def _run_watchdog(self) -> None:
        """Silence is no verdict: when the agent should speak and does not, it is asked whether it lives."""
        quiet = float(self._context.config.acp.quiet)
        while True:
            silent = anyio.current_time() - self._updates.last_activity
            if silent < quiet or self._updates.is_waiting:
                await anyio.sleep(max(quiet - silent, 1.0))
                continue
            if not await self._agent.is_alive(min(max(quiet, _ALIVE_TIMEOUT), 6 * _ALIVE_TIMEOUT)):
                self._agent.retire(f"said nothing for {quiet:g} s and does not answer, so it was ended (acp.quiet)")
                return
            self._emit_note(f"{self._agent.name} has said nothing for {quiet:g} s; it runs and answers")
            self._updates.last_activity = anyio.current_time()

    async def _finish(self, thread: str, prompting: RunningPrompt, *, may_die: bool) -> None:
        can_go_on = self._agent.info.can_load or self._agent.info.can_resume
        match prompting.outcome:
            case PromptResponse(stop_reason=reason) as prompted:
                self._recorder.add_usage(prompted.tokens())
                await self._updates.close_open_calls(_NO_RESULT)
                # Written down before its last words: whoever finds those finds that they were the last.
                await self._turn.record(Bound(NAME, thread, saw=self._recorder.saw))
                await self._updates.finish_message()
                await self._recorder.close()
                if cut := STOP_REASONS.get(reason):
                    await self._turn.record(Reply("", self._recorder.saw, cut=cut))
                if reason == "cancelled":
                    raise Refused(f"{self._agent.name} ended this turn as cancelled, though nobody had stopped it")
            case ProcessExited() as gone if may_die and can_go_on:
                raise AgentDied(str(gone)) from gone
            case RpcError() | Unavailable() as error:
                await self._updates.close_open_calls(UNKNOWN)
                await self._updates.finish_message()
                await self._recorder.close()
                raise PromptFailed(error)
            case None:
                raise Unavailable(f"{self._agent.name} was given up")

    def _emit_note(self, text: str) -> None:
        self._turn.emit(Delta(text, "note"))


class AgentDied(Exception):
    """The agent died in the midst of a prompt. What it had begun is as open as it was."""


class PromptFailed(Exception):
    """A prompt ended with this error; all that was said and done is written down."""

    def __init__(self, error: RpcError | Unavailable) -> None:
        super().__init__(str(error))
        self.error = error


def _render_input(message: UserMessage) -> str:
    return message.text if message.source == "person" else f"[notice] {message.text}"
