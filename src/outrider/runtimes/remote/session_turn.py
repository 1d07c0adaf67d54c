"""One run of a turn on another Outrider: its session is followed by cursor, and what happens there is recorded here.

Every entry of the other journal is recorded under a key, so a run after a crash reads them again and records what is
missing. An input is sent under a key, too: however often it is sent, it is one input there.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import TypeVar

import anyio
from msgspec import Struct
from msgspec.structs import replace

from outrider.core.approvals import NO, ONCE, ApprovalRequest, request_digest
from outrider.core.errors import Refused, StaleClaim
from outrider.core.events import Answered, Asked, Begun, Bound, Delta, Ended, Input, Reply, Result, Resumed
from outrider.core.plan import State
from outrider.core.ports import Turn
from outrider.core.prompt import UserMessage
from outrider.core.question_text import render_question
from outrider.core.types import REMOTE, Image
from outrider.runtimes.base import RuntimeContext
from outrider.runtimes.external.approvals import ANSWER_TIMEOUT, JournalWatcher
from outrider.runtimes.external.history import render_history
from outrider.runtimes.external.recorder import clip_middle, external_call_id
from outrider.runtimes.remote.chat_completions import NOTICE
from outrider.runtimes.remote.chat_turn import is_chat_binding
from outrider.runtimes.remote.errors import PARTIAL, RemoteFailed
from outrider.runtimes.remote.notices import entry_key, our_notice
from outrider.runtimes.remote.outrider_api import FarEntry, FarEvent, FarInput, FarOutrider
from outrider.runtimes.tool_runner import decide_or_ask, deny_unreachable
from outrider.system.failpoints import failpoint
from outrider.system.task_groups import background_group

STOP_TIMEOUT = 5.0
"""Seconds in which a stop must reach the other side. It is sent again before the next turn otherwise."""
FIRST_RETRY, LONGEST_RETRY = 0.2, 5.0
_log = logging.getLogger("outrider.remote")
T = TypeVar("T")


class FarCursor(Struct, frozen=True):
    """How far the other journal is known here, as `Bound.turn` holds it."""

    entry: int
    newest_input: int = 0
    """The newest input of the turn that runs there; 0 when none does."""

    def __str__(self) -> str:
        return f"{self.entry}@{self.newest_input}" if self.newest_input else str(self.entry)


def parse_cursor(text: str) -> FarCursor:
    entry, _, newest = text.partition("@")
    return FarCursor(int(entry), int(newest or 0)) if entry.isdigit() else FarCursor(0)


def session_binding(state: State) -> Bound | None:
    """The session on the other Outrider, if there is one."""
    bound = state.threads.get(REMOTE)
    return None if bound is None or is_chat_binding(bound) else bound


def far_session_name(session: str) -> str:
    """The name of the session there, the same whenever it is asked for."""
    return f"remote {session}"


def is_finished(state: State) -> bool:
    """Whether the turn there has ended and everything of it is recorded."""
    bound = session_binding(state)
    is_idle = not (state.has_unseen or state.calls or state.owes_reply)
    return is_idle and bound is not None and not parse_cursor(bound.turn).newest_input


class SessionTurnRun:
    """One run of a turn on another Outrider."""

    def __init__(self, turn: Turn, far: FarOutrider, context: RuntimeContext, patience: float) -> None:
        self._turn = turn
        self._far = far
        self._context = context
        self._redact = context.tool_environment.redact
        self._patience = patience
        self._journal = JournalWatcher(turn)
        self._session = ""
        self._cursor = 0
        self._inputs: dict[int, int] = {}
        """Our number of an input by its number there."""
        self._posting = anyio.Lock()
        self._has_posted = False
        self._is_posting = False
        self._may_run_there = False
        """Whether a turn that this run is about may be running on the other side."""
        self._newest_there = 0
        """The newest message there that is ours."""
        self._wants_preamble = False
        self._questions: dict[str, str] = {}
        """Their question by ours, until the answer is sent."""
        self._ended: Ended | None = None
        self._partial = ""

    @property
    def cursor(self) -> int:
        """The last entry there that is known here."""
        return self._cursor

    @property
    def far_session(self) -> str:
        return self._session

    async def run(self) -> None:
        """Follow the turn to its end. Raises RemoteFailed after what arrived is recorded; Refused when it failed there.

        When the turn is stopped here, it is stopped there.
        """
        if is_finished(self._turn.state()):
            return
        deadline, must_stop, is_left = anyio.current_effective_deadline(), False, False
        try:
            await self._run()
            is_left = True
        except StaleClaim:
            must_stop = True
            raise
        except RemoteFailed as failed:
            is_left = True
            await self._record_failure(failed)
            raise
        except Refused:
            is_left = True
            raise
        finally:
            is_late = anyio.current_time() >= deadline
            if self._may_run_there and not is_left and (must_stop or is_late or self._turn.is_superseded):
                await self._stop_there()

    async def _run(self) -> None:
        if self._turn.state().questions and not await self._is_answered_there():
            await deny_unreachable(self._turn, self._context.tool_environment)
            if self._turn.state().questions:
                return
        await self._bind()
        backlog = await self._patiently(lambda: self._far.entries(self._session, self._cursor))
        for entry in backlog:
            await self._take_notice(entry)
            if isinstance(entry.body, Input):
                self._newest_there = entry.seq
        await self._post_inputs()
        for entry in backlog:
            await self._handle(entry)
        with anyio.CancelScope() as scope:
            async with background_group() as group:
                group.start_soon(self._journal.listen, lambda: None)
                group.start_soon(self._forward)
                group.start_soon(self._suspend, scope)
                await self._follow()
        if not scope.cancelled_caught:
            await self._finish()

    async def _is_answered_there(self) -> bool:
        """Whether one of the open questions was answered on the other side."""
        bound = session_binding(self._turn.state())
        if bound is None:
            return True
        try:
            entries = await self._far.entries(bound.thread, parse_cursor(bound.turn).entry)
        except RemoteFailed as failed:
            _log.info("%s", failed)
            return False
        ours = {one.body.ask: self._our_ask(bound.thread, one.body) for one in entries if isinstance(one.body, Asked)}
        answered = {one.body.ask for one in entries if isinstance(one.body, Answered)}
        return any(ours.get(ask) in self._turn.state().questions for ask in answered)

    async def _bind(self) -> None:
        """Find or create the session there, and record where its journal is read from."""
        state = self._turn.state()
        bound = session_binding(state)
        is_running = bool(bound and parse_cursor(bound.turn).newest_input)
        self._may_run_there = is_running
        thread = bound.thread if bound else ""
        found = await self._patiently(lambda: self._far.find_session(thread)) if bound else None
        if bound and found is None:
            self._turn.emit(Delta("the session was deleted on the other side; a new one starts", "note"))
        if bound and found:
            cursor = parse_cursor(bound.turn)
            saw, self._session, self._cursor = bound.saw, found.id, min(cursor.entry, found.head)
            if cursor.newest_input and cursor.newest_input <= state.saw and not state.steps:
                await self._skip_superseded()
                self._may_run_there = False
        else:
            created = await self._far.create_session(far_session_name(self._turn.session.id))
            saw, self._session, self._cursor = 0, created.id, created.head
        self._wants_preamble = not state.steps
        self._newest_there = self._cursor
        binding = Bound(REMOTE, self._session, str(FarCursor(self._cursor, state.newest_input)), saw)
        if bound != binding:
            await self._turn.record(binding)

    async def _skip_superseded(self) -> None:
        """A turn that was stopped here may not have heard of it: stop it, and record nothing of it but notices."""
        await self._far.stop(self._session)
        for entry in await self._far.entries(self._session, self._cursor):
            await self._take_notice(entry)
            self._cursor = entry.seq

    async def _take_notice(self, entry: FarEntry) -> None:
        """Record a notice of the other side's own work as an input here, once."""
        match entry.body:
            case Input(source="task" | "schedule") as notice:
                session = self._turn.session
                address = await self._context.bindings.notice_address(session.id)
                body = our_notice(notice, session.person, address, self._redact)
                recorded = await self._turn.record(body, key=entry_key(self._session, entry.seq))
                unseen = [seq for seq, one in self._turn.transcript().unseen() if one.text == body.text]
                known = set(self._inputs.values())
                ours = recorded.seq if recorded else next((seq for seq in unseen if seq not in known), 0)
                self._inputs.setdefault(entry.seq, ours)
            case _:
                pass

    async def _post_inputs(self) -> None:
        """Send the inputs that the other side does not have."""
        async with self._posting:
            for seq, message in self._turn.transcript().unseen():
                if seq in self._inputs.values():
                    continue
                new = self._far_input(seq, message)

                async def post(new: FarInput = new) -> int:
                    return await self._far.add_input(self._session, new)

                self._is_posting = self._may_run_there = True
                number = await (self._repeat(post) if self._has_posted else self._patiently(post))
                failpoint("call_intent_recorded")
                self._is_posting, self._has_posted = False, True
                self._inputs[number] = seq
                self._newest_there = max(self._newest_there, number)

    def _far_input(self, seq: int, message: UserMessage) -> FarInput:
        """An input as it is sent: the first one of a turn after what the other side has not seen of this session."""
        text = message.text if message.source == "person" else NOTICE + message.text
        images = [self._load_image(image) for image in message.images]
        if self._wants_preamble:
            self._wants_preamble = False
            state, bound = self._turn.state(), session_binding(self._turn.state())
            saw = bound.saw if bound else 0
            instructions = state.settings.get("instructions", "") if not saw else ""
            context = f"[Instructions for this session:]\n{instructions}" if instructions else ""
            history = render_history(self._turn.transcript().after(saw), self._load_image)
            text = "\n\n".join(part for part in (context, history.text, text) if part)
            images = [*(image.content for image in history.images), *images]
        can_notify = self._context.bindings.can_notify(self._turn.state().address)
        return FarInput(text, images, f"{self._turn.session.id}/{seq}", can_notify=can_notify)

    def _load_image(self, image: Image) -> bytes:
        return self._context.blobs.get(image.blob)

    async def _forward(self) -> None:
        """Send new inputs and answers, as they are recorded here."""
        while True:
            seen = self._turn.state().head
            await self._send_answers()
            await self._post_inputs()
            await self._journal.wait_until(lambda seen=seen: self._turn.state().head > seen)

    async def _suspend(self, scope: anyio.CancelScope) -> None:
        """End this run when a question has waited for long and nothing else is going on."""
        waited = 0.0
        while waited < ANSWER_TIMEOUT:
            await anyio.sleep(1.0)
            # The owner of the turn may be about to hand it over.
            await self._turn.refresh()
            state = self._turn.state()
            is_waiting = bool(state.questions) and all(state.is_asked(call.id) for call in state.calls)
            waited = waited + 1.0 if is_waiting else 0.0
        scope.cancel()

    async def _follow(self) -> None:
        """Read events until the turn has ended, over as many connections as it takes."""
        failing_since, delay = None, FIRST_RETRY
        while not self._is_over():
            try:
                async with aclosing(self._far.follow(self._session, self._cursor)) as events:
                    async for event in events:
                        failing_since, delay = None, FIRST_RETRY
                        await self._handle_event(event)
                        if self._is_over():
                            return
            except RemoteFailed as failed:
                now = anyio.current_time()
                failing_since = failing_since or now
                if not failed.may_pass or now - failing_since >= self._patience:
                    raise
                self._partial = ""
                self._turn.emit(Delta(f"{failed}; trying again", "reset"))
                await anyio.sleep(delay)
                delay = min(LONGEST_RETRY, delay * 2)

    async def _patiently(self, request: Callable[[], Awaitable[T]]) -> T:
        """Repeat a request of a turn that runs there already. Before that, its first failure is the answer."""
        return await (self._repeat(request) if self._may_run_there and not self._is_posting else request())

    async def _repeat(self, request: Callable[[], Awaitable[T]]) -> T:
        """Repeat a request that takes effect once, until it is answered or the patience ends."""
        started, delay = anyio.current_time(), FIRST_RETRY
        while True:
            try:
                return await request()
            except RemoteFailed as failed:
                if not failed.may_pass or anyio.current_time() - started >= self._patience:
                    raise
                await anyio.sleep(delay)
                delay = min(LONGEST_RETRY, delay * 2)

    def _is_over(self) -> bool:
        return self._ended is not None and self._ended.saw >= max(self._inputs, default=0)

    async def _handle_event(self, event: FarEvent) -> None:
        match event:
            case Delta(text=text, kind=kind):
                self._partial = self._partial + text if kind == "text" else "" if kind == "reset" else self._partial
                self._turn.emit(event)
                failpoint("mid_reply")
            case FarEntry():
                await self._take_notice(event)
                await self._handle(event)

    async def _handle(self, entry: FarEntry) -> None:
        key = entry_key(self._session, entry.seq)
        match entry.body:
            case Reply() as reply:
                await self._record_reply(reply, key)
            case Begun(call=call) if self._is_open(call):
                await self._turn.record(Begun(self._our_call(call)), key=key)
            case Result() as result if self._is_open(result.call):
                failpoint("result_not_recorded")
                images = f"\n[images on the other side: {len(result.images)}]" if result.images else ""
                text = clip_middle(self._redact(result.text)) + images
                details = self._redact(result.details)
                body = Result(self._our_call(result.call), text, result.failed, details=details, args=result.args)
                await self._turn.record(body, key=key)
            case Asked() as asked if not asked.call or self._is_open(asked.call):
                await self._ask(asked)
            case Answered() as answered:
                await self._take_answer(answered)
            case Resumed():
                self._turn.emit(Delta("the other side was restarted and continues", "reset"))
            case Ended() as ended:
                self._ended = ended
            case _:
                pass
        self._cursor = max(self._cursor, entry.seq)

    async def _record_reply(self, reply: Reply, key: str) -> None:
        async with self._posting:  # an input that is being sent gets its number first
            saw = max((ours for far, ours in self._inputs.items() if far <= reply.saw), default=0)
        self._partial = ""
        calls = tuple(replace(call, id=self._our_call(call.id)) for call in reply.calls)
        failpoint("calls_not_recorded" if calls else "reply_not_recorded")
        body = Reply(
            self._redact(reply.text),
            max(saw, self._turn.state().saw),
            calls,
            model=reply.model,
            usage=reply.usage,
            cost=reply.cost,
            cut=reply.cut,
        )
        await self._turn.record(body, key=key)

    async def _ask(self, asked: Asked) -> None:
        """A question of the other side becomes one here. Our rules may deny it first."""
        ask = self._our_ask(self._session, asked)
        state = self._turn.state()
        if ask in state.answers or ask in state.questions:
            self._questions[ask] = asked.ask
        else:
            request = _our_request(asked.request) if asked.request else None
            decision = await decide_or_ask(self._context.tool_environment, self._turn, request) if request else None
            if decision and decision.verdict != "ask":
                answer = ONCE if decision.verdict == "allow" else NO
                await self._repeat(lambda: self._far.answer(self._session, asked.ask, answer))
                return
            call = self._our_call(asked.call) if asked.call else ""
            question = render_question(request) if request else self._redact(asked.question)
            digest = request_digest(request) if request else asked.digest
            needs = request.needs if request else _our_needs(asked.needs)
            self._questions[ask] = asked.ask
            body = Asked(ask, question, call, asked.choices, needs, digest, request)
            await self._turn.record(body, key=f"ask/{ask}")
            failpoint("approval_pending")
        await deny_unreachable(self._turn, self._context.tool_environment)
        await self._send_answers()

    async def _send_answers(self) -> None:
        answers = self._turn.state().answers
        for ask, theirs in tuple(self._questions.items()):
            if ask in answers and self._questions.pop(ask, None):
                answer = answers[ask].answer
                await self._repeat(lambda theirs=theirs, answer=answer: self._far.answer(self._session, theirs, answer))

    async def _take_answer(self, answered: Answered) -> None:
        """A question was answered there: by us, or by a person on the other side."""
        ours = next((ask for ask, theirs in self._questions.items() if theirs == answered.ask), "")
        if ours:
            del self._questions[ours]
            if ours in self._turn.state().questions:
                await self._turn.record(Answered(ours, answered.answer, answered.person), key=f"answer/{ours}")

    async def _finish(self) -> None:
        """Record that the turn has ended there. Raises Refused when it failed."""
        ended = self._ended or Ended("done", 0)
        saw = max((ours for far, ours in self._inputs.items() if far <= ended.saw), default=0)
        state = self._turn.state()
        if state.owes_reply or state.saw < saw:
            partial = self._redact(ended.partial)
            await self._turn.record(Reply(partial, max(saw, state.saw), cut=PARTIAL if partial else ""))
        await self._turn.record(Bound(REMOTE, self._session, str(FarCursor(self._cursor)), self._turn.state().head))
        if ended.outcome == "failed":
            raise Refused(f"Remote turn failed: {self._redact(ended.reason) or 'no reason was given'}")
        if ended.outcome == "interrupted":
            raise Refused(f"Remote turn was stopped on the other side: {self._redact(ended.reason) or 'stopped'}")

    async def _record_failure(self, failed: RemoteFailed) -> None:
        """Keep what arrived. The next turn reads on from here, so an answer that comes later is not lost."""
        if self._session:
            cursor = str(FarCursor(self._cursor))
            await self._turn.record(Bound(REMOTE, self._session, cursor, self._turn.state().head))
        state = self._turn.state()
        for asked in tuple(state.questions.values()):
            await self._turn.record(Answered(asked.ask, NO), key=f"answer/{asked.ask}")
        saw = max(state.newest_input, state.saw)
        partial = self._redact(self._partial)
        await self._turn.record(Reply(partial or str(failed), saw, cut=PARTIAL if partial.strip() else ""))

    async def _stop_there(self) -> None:
        """Stop the turn there, unless a newer input has arrived: then that turn is not ours."""
        with anyio.CancelScope(shield=True):
            try:
                with anyio.fail_after(STOP_TIMEOUT):
                    later = await self._far.entries(self._session, self._newest_there)
                    messages = [one for one in later if isinstance(one.body, Input) and one.body.source == "person"]
                    if len(messages) <= self._is_posting:
                        await self._far.stop(self._session)
            except (RemoteFailed, TimeoutError) as error:
                _log.warning("the turn could not be stopped on the other side: %s", error or "no answer in time")

    def _is_open(self, call: str) -> bool:
        ours = self._our_call(call)
        return any(one.id == ours for one in self._turn.state().calls)

    def _our_call(self, call: str) -> str:
        return external_call_id(REMOTE, f"{self._session}/{call}")

    def _our_ask(self, session: str, asked: Asked) -> str:
        call = external_call_id(REMOTE, f"{session}/{asked.call or asked.ask}")
        return f"ask-{call}{asked.ask.removeprefix(f'ask-{asked.call}') if asked.call else ''}"


def _our_needs(needs: Sequence[str]) -> tuple[str, ...]:
    """What a yes allows on the other side. It allows nothing here, now or later."""
    return tuple(f"{REMOTE}:{need}" for need in needs)


def _our_request(request: ApprovalRequest) -> ApprovalRequest:
    return replace(request, needs=_our_needs(request.needs))
