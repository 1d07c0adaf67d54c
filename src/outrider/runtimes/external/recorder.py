"""Recorder of what an external program does in a turn: each item once, in an order that every prompt can show.

A call is recorded when it begins and closed before anything else is recorded, so a call and its result are neighbours.
Public methods may be called by several tasks; each takes effect as a whole.
"""

from collections.abc import Awaitable, Callable, Mapping
from hashlib import blake2b

import anyio
from msgspec import Struct

from outrider.core.events import Begun, Reply, Result
from outrider.core.ports import Turn
from outrider.core.prompt import UNKNOWN
from outrider.core.text import head_and_tail
from outrider.core.types import Call, Image, Usage
from outrider.runtimes.external.images import ImageContent
from outrider.system.failpoints import failpoint

MAX_TEXT = 20_000
"""Characters of one text that the journal holds; a longer one is cut in its middle."""
CONTINUES_IN_BACKGROUND = "[it continues in the background]"
STARTED_EARLIER = "[this started earlier and continued in the background]\n"
NOT_ANSWERED_YET = "not run: it waited for an answer when the work was interrupted"
Redact = Callable[[str], str]
StoreBlob = Callable[[bytes], str]
"""Stores a long text or an image outside of the journal, and returns the name it has there."""
DeferredRecord = Callable[[], Awaitable[None]]


class ExternalCall(Struct, frozen=True):
    """A tool call of the external program, under the id it has there."""

    item_id: str
    tool: str
    args: Mapping[str, object]


class CallOutcome(Struct, frozen=True):
    """The result of an external call."""

    text: str
    failed: bool = False
    details: str = ""
    images: tuple[ImageContent, ...] = ()


def call_of(runtime: str, call: ExternalCall) -> Call:
    """The call as it is in our journal. Its id is valid for every provider and the same each time it is computed."""
    return Call(external_call_id(runtime, call.item_id), call.tool, dict(call.args))


def external_call_id(runtime: str, item: str) -> str:
    """Nine letters and digits. Call ids of our own loop begin with another letter."""
    return "x" + blake2b(f"{runtime}/{item}".encode(), digest_size=4).hexdigest()


def clip_middle(text: str, most: int = MAX_TEXT) -> str:
    """The text, or the beginning and the end of one that is too long, with a line that says how much is missing."""
    return head_and_tail(text, most // 3, most - most // 3)


def _late_args(announced: Mapping[str, object], reported: Mapping[str, object]) -> dict[str, object] | None:
    """The arguments that a call was reported with at its end; None when they add nothing to those it began with."""
    return dict(reported) if any(reported.values()) and reported != announced else None


class TurnRecorder:
    """Writes the journal of one turn that an external program runs."""

    def __init__(self, turn: Turn, runtime: str, redact: Redact, store_blob: StoreBlob | None = None) -> None:
        """`store_blob` keeps images, and the whole of a text that is too long for the journal."""
        self._store_blob = store_blob
        self._turn = turn
        self._runtime = runtime
        self._redact = redact
        self._lock = anyio.Lock()
        self._open: ExternalCall | None = None
        """The call that is recorded and has no result yet."""
        self._is_held = False
        self._running: dict[str, ExternalCall] = {}
        """Calls that began while another one was open."""
        self._in_background: set[str] = set()
        """Calls that were recorded as continuing in the background and have not ended."""
        self._closed: set[str] = set()
        self._deferred: list[DeferredRecord] = []
        self._pending_message: tuple[str, str] | None = None
        self._usage = Usage()
        self._saw = turn.state().saw
        self._model = ""

    @property
    def saw(self) -> int:
        """The newest input that the program was given."""
        return self._saw

    def input_seen(self, seq: int) -> None:
        """The program was given the inputs up to this one."""
        self._saw = max(self._saw, seq)

    def set_model(self, model: str) -> None:
        """The model that the next replies are attributed to."""
        self._model = model

    def add_usage(self, usage: Usage) -> None:
        """Count tokens; they are recorded with the next reply."""
        self._usage += usage

    def has_seen(self, item: str) -> bool:
        """Whether this item was reported here."""
        is_open = self._open is not None and self._open.item_id == item
        return is_open or item in self._closed or item in self._running

    async def message_finished(self, item: str, text: str) -> None:
        """A message is complete. It is recorded before the next thing is, so that its tokens are recorded with it."""
        async with self._lock:
            await self._flush()
            if text.strip():
                self._pending_message = (item, text)

    async def flush(self) -> None:
        """Record the finished message, if there is one. An open call continues in the background."""
        async with self._lock:
            await self._flush()

    async def call_announced(self, call: ExternalCall, *, is_held: bool = False, has_begun: bool = True) -> Call:
        """A call is about to run.

        `is_held`: nothing else is recorded until it ends, because it waits for an answer or runs one of our tools.
        `has_begun`: no question will come first, so the call counts as begun; else `call_started` says so later.
        While another call is open, this one is recorded after it; a held one sends the other to the background.
        """
        async with self._lock:
            return await self._announce(call, is_held=is_held, has_begun=has_begun)

    async def call_started(self, item: str) -> None:
        """A call that was held, or had not begun, runs now: it was allowed, or no question came."""
        async with self._lock:
            await self._start(item)

    async def call_assumed_started(self, item: str) -> None:
        """As `call_started`, unless the call is held by now."""
        async with self._lock:
            if not self._is_held:
                await self._start(item)

    async def call_finished(self, call: ExternalCall, outcome: CallOutcome, *, starts_now: bool = False) -> None:
        """A call ended; reported again, it is ignored. `starts_now`: nothing else says that it began."""
        async with self._lock:
            if starts_now:
                await self._start(call.item_id)
            await self._finish(call, outcome)

    async def call_returned(self, item: str) -> None:
        """The result of the open call was recorded by one of our tools."""
        async with self._lock:
            if self._open and self._open.item_id == item:
                await self._release(item)

    async def finish_inherited_call(
        self, call: Call, outcome: CallOutcome, reported: ExternalCall | None = None
    ) -> None:
        """Close a call that an earlier owner of this turn left open; `reported` is what the program says of it."""
        async with self._lock:
            if reported is None:
                await self._record_result(call.id, outcome, None)
                return
            self._closed.add(reported.item_id)
            args = _late_args(call.args, reported.args)
            await self._record_result(call.id, outcome, self._key(reported.item_id), args)

    async def close(self, reason: str = UNKNOWN) -> None:
        """Close every open call with this text: the program has ended the turn."""
        async with self._lock:
            await self._flush()
            while self._open:
                call = external_call_id(self._runtime, self._open.item_id)
                is_asked = any(asked.call == call for asked in self._turn.state().questions.values())
                text = NOT_ANSWERED_YET if is_asked else reason
                await self._close(self._open, CallOutcome(text, failed=is_asked or reason == UNKNOWN))
            state = self._turn.state()
            if state.owes_reply or state.saw < self._saw or self._usage != Usage():
                await self._record_reply(Reply("", self._saw), None)

    async def _flush(self) -> None:
        if self._pending_message:
            (item, text), self._pending_message = self._pending_message, None

            async def record() -> None:
                await self._record_reply(Reply(self._redact(text), self._saw), self._key(item))

            if self._open and self._is_held:
                self._deferred.append(record)
                return
            await self._move_to_background()
            await record()

    async def _announce(self, call: ExternalCall, *, is_held: bool = False, has_begun: bool = True) -> Call:
        await self._flush()
        entry = call_of(self._runtime, call)
        is_open = self._open is not None and self._open.item_id == call.item_id
        if is_held and not is_open:
            await self._move_to_background()
        if self._open is None:
            self._running.pop(call.item_id, None)
            self._open, self._is_held = call, is_held
            await self._record_call(call, has_begun=has_begun and not is_held)
        elif is_open:
            self._is_held = is_held
        else:
            self._running[call.item_id] = call
        return entry

    async def _start(self, item: str) -> None:
        if self._open and self._open.item_id == item:
            self._is_held = False
            await self._record_begun(item)

    async def _finish(self, call: ExternalCall, outcome: CallOutcome) -> None:
        await self._flush()
        if call.item_id in self._in_background:
            self._in_background.discard(call.item_id)
            later = ExternalCall(f"{call.item_id}/later", call.tool, call.args)
            await self._run_or_defer(
                lambda: self._record_finished_call(later, CallOutcome(STARTED_EARLIER + outcome.text, outcome.failed))
            )
        if call.item_id in self._closed:
            return
        if self._open and self._open.item_id == call.item_id:
            await self._close(call, outcome)
        else:
            self._running.pop(call.item_id, None)
            self._closed.add(call.item_id)
            await self._run_or_defer(lambda: self._record_finished_call(call, outcome))

    async def _run_or_defer(self, record: DeferredRecord) -> None:
        if self._open:
            self._deferred.append(record)
        else:
            await record()

    async def _move_to_background(self) -> None:
        while self._open:
            self._in_background.add(self._open.item_id)
            await self._close(self._open, CallOutcome(CONTINUES_IN_BACKGROUND))

    async def _close(self, call: ExternalCall, outcome: CallOutcome) -> None:
        failpoint("result_not_recorded")
        args = _late_args(self._open.args, call.args) if self._open else None
        await self._record_result(external_call_id(self._runtime, call.item_id), outcome, self._key(call.item_id), args)
        await self._release(call.item_id)

    async def _release(self, item: str) -> None:
        self._open, self._is_held = None, False
        self._closed.add(item)
        while self._deferred and self._open is None:
            await self._deferred.pop(0)()
        if self._running and self._open is None:
            await self._announce(self._running[next(iter(self._running))])

    async def _record_finished_call(self, call: ExternalCall, outcome: CallOutcome) -> None:
        self._open = call
        await self._record_call(call, has_begun=True)
        await self._close(call, outcome)

    async def _record_call(self, call: ExternalCall, *, has_begun: bool) -> None:
        failpoint("calls_not_recorded")
        reply = Reply("", self._saw, (call_of(self._runtime, call),))
        await self._record_reply(reply, self._key(call.item_id) + "/call")
        if has_begun:
            await self._record_begun(call.item_id)

    async def _record_begun(self, item: str) -> None:
        await self._turn.record(Begun(external_call_id(self._runtime, item)), key=self._key(item) + "/begun")
        failpoint("call_intent_recorded")

    async def _record_result(
        self, call: str, outcome: CallOutcome, key: str | None, args: dict[str, object] | None = None
    ) -> None:
        whole, details = self._redact(outcome.text), self._redact(outcome.details)
        text = clip_middle(whole)
        store = self._store_blob
        blob = store(whole.encode(errors="replace")) if store and text != whole else ""
        images = tuple(Image(store(image.content), image.media) for image in outcome.images) if store else ()
        await self._turn.record(Result(call, text, outcome.failed, images, blob, details, args), key=key)

    async def _record_reply(self, reply: Reply, key: str | None) -> None:
        usage, self._usage = self._usage, Usage()
        if not reply.calls:
            failpoint("reply_not_recorded")
        await self._turn.record(Reply(reply.text, reply.saw, reply.calls, model=self._model, usage=usage), key=key)

    def _key(self, item: str) -> str:
        return f"{self._runtime}/{item}"
