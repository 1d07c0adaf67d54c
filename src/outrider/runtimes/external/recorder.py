"""Writes down what another program does in a turn: once by its own ids, in an order that every prompt can show.

A call is recorded when it begins and closed before anything else is recorded, so a call and its result are neighbours.
"""

from collections.abc import Awaitable, Callable, Mapping
from hashlib import blake2b

from msgspec import Struct

from outrider.core.events import Begun, Reply, Result
from outrider.core.ports import Turn
from outrider.core.prompt import UNKNOWN
from outrider.core.types import Call, Usage
from outrider.system.failpoints import failpoint

MAX_TEXT = 20_000
"""Characters of one text that are kept; more is cut in its middle."""
CONTINUES_IN_BACKGROUND = "[it goes on in the background]"
STARTED_EARLIER = "[this began earlier and went on in the background]\n"
NOT_ANSWERED_YET = "not run: it waited for an answer when the work was interrupted"
Redact = Callable[[str], str]
StoreBlob = Callable[[bytes], str]
DeferredRecord = Callable[[], Awaitable[None]]


class ExternalCall(Struct, frozen=True):
    """Something the other program does, under the id it has there."""

    item_id: str
    tool: str
    args: Mapping[str, object]


class CallOutcome(Struct, frozen=True):
    """What came of it."""

    text: str
    failed: bool = False
    details: str = ""


def call_of(runtime: str, call: ExternalCall) -> Call:
    """The call a deed is in our journal; its id is valid for every provider, and the same whenever it is read again."""
    return Call(external_call_id(runtime, call.item_id), call.tool, dict(call.args))


def external_call_id(runtime: str, item: str) -> str:
    """Nine letters and digits; calls of our own loop begin with another letter."""
    return "x" + blake2b(f"{runtime}/{item}".encode(), digest_size=4).hexdigest()


def clip_middle(text: str, most: int = MAX_TEXT) -> str:
    """The beginning and the end of a text that is too long, and how much is missing between them."""
    if len(text) <= most:
        return text
    head, tail = most // 3, most - most // 3
    return f"{text[:head]}\n[… {len(text) - most:,} characters left out …]\n{text[-tail:]}"


class TurnRecorder:
    """The journal of one turn that another program carries."""

    def __init__(self, turn: Turn, runtime: str, redact: Redact, keep: StoreBlob | None = None) -> None:
        """`keep` takes what is too long to be kept here, and says what it is called there."""
        self._store_blob = keep
        self._turn = turn
        self._runtime = runtime
        self._redact = redact
        self._open: ExternalCall | None = None
        self._is_held = False
        self._running: dict[str, ExternalCall] = {}
        """What began while another call was open."""
        self._in_background: set[str] = set()
        """What was told to go on, and has not ended yet."""
        self._closed: set[str] = set()
        self._deferred: list[DeferredRecord] = []
        self._pending_message: tuple[str, str] | None = None
        self._usage = Usage()
        self.saw = turn.state().saw
        """The newest input that the other program was given."""
        self.model = ""

    async def message_finished(self, item: str, text: str) -> None:
        """It finished a message. Recorded when the next thing is, so that its tokens can be told with it."""
        await self.flush()
        if text.strip():
            self._pending_message = (item, text)

    def add_usage(self, usage: Usage) -> None:
        """Tokens since this was last called; they are told with the next reply that is recorded."""
        self._usage += usage

    async def flush(self) -> None:
        """Record what was said and not yet recorded. Whoever speaks waits for no call: an open one goes on."""
        if self._pending_message:
            (item, text), self._pending_message = self._pending_message, None

            async def reply() -> None:
                await self._record_reply(Reply(self._redact(text), self.saw), self._key(item))

            if self._open and self._is_held:
                self._deferred.append(reply)
                return
            await self._close_open_call()
            await reply()

    async def call_announced(self, deed: ExternalCall, *, is_held: bool = False, is_sure: bool = True) -> Call:
        """It is about to do this. `is_held`: until it ends, all else waits to be recorded (an answer, a tool of ours).

        `is_sure`: nothing will be asked first, so that it counts as begun from now on; see `begins`. While another call
        is open, this one is recorded when there is room; a held one makes room, and the other one goes on.
        """
        await self.flush()
        call = call_of(self._runtime, deed)
        is_open = self._open is not None and self._open.item_id == deed.item_id
        if is_held and not is_open:
            await self._close_open_call()
        if self._open is None:
            self._running.pop(deed.item_id, None)
            self._open, self._is_held = deed, is_held
            await self._record_call(call, deed, is_begun=is_sure and not is_held)
        elif is_open:
            self._is_held = is_held
        else:
            self._running[deed.item_id] = deed
        return call

    async def call_started(self, item: str) -> None:
        """What was held, or was not sure, is done now: allowed, or never asked about."""
        if self._open and self._open.item_id == item:
            self._is_held = False
            await self._turn.record(Begun(external_call_id(self._runtime, item)), key=self._key(item) + "/begun")
            failpoint("call_intent_recorded")

    async def call_finished(self, call: ExternalCall, outcome: CallOutcome) -> None:
        """It did this; told once, however often it is said."""
        await self.flush()
        if call.item_id in self._in_background:
            self._in_background.discard(call.item_id)
            late = ExternalCall(f"{call.item_id}/later", call.tool, call.args)
            await self._run_or_defer(
                lambda: self._record_finished_call(late, CallOutcome(STARTED_EARLIER + outcome.text, outcome.failed))
            )
        if call.item_id in self._closed:
            return
        if self._open and self._open.item_id == call.item_id:
            await self._close(call, outcome)
        else:
            self._running.pop(call.item_id, None)
            self._closed.add(call.item_id)
            await self._run_or_defer(lambda: self._record_finished_call(call, outcome))

    async def call_returned(self, item: str) -> None:
        """A tool of ours has recorded the result of the call that is open."""
        if self._open and self._open.item_id == item:
            await self._release(item)

    async def close(self, why: str = UNKNOWN) -> None:
        """The turn is over there: nothing of it stays open here."""
        await self.flush()
        while self._open:
            call = external_call_id(self._runtime, self._open.item_id)
            is_asked = any(asked.call == call for asked in self._turn.state().questions.values())
            came = CallOutcome(NOT_ANSWERED_YET if is_asked else why, failed=is_asked or why == UNKNOWN)
            await self._close(self._open, came)
        state = self._turn.state()
        if state.owes_reply or state.saw < self.saw:
            await self._record_reply(Reply("", self.saw), None)

    def has_seen(self, item: str) -> bool:
        """Whether this item was heard of here."""
        is_open = self._open is not None and self._open.item_id == item
        return is_open or item in self._closed or item in self._running

    async def finish_inherited_call(self, call: Call, outcome: CallOutcome, item: str = "") -> None:
        """A call that an earlier owner of this turn left open has come to this; `item` is its name there, if known."""
        if item:
            self._closed.add(item)
        await self._record_result(call.id, outcome, self._key(item) if item else None)

    async def _run_or_defer(self, act: DeferredRecord) -> None:
        if self._open:
            self._deferred.append(act)
        else:
            await act()

    async def _close_open_call(self) -> None:
        while self._open:
            self._in_background.add(self._open.item_id)
            await self._close(self._open, CallOutcome(CONTINUES_IN_BACKGROUND))

    async def _record_call(self, call: Call, deed: ExternalCall, *, is_begun: bool) -> None:
        failpoint("calls_not_recorded")
        await self._record_reply(Reply("", self.saw, (call,)), self._key(deed.item_id) + "/call")
        if is_begun:
            await self._turn.record(Begun(call.id), key=self._key(deed.item_id) + "/begun")
            failpoint("call_intent_recorded")

    async def _record_finished_call(self, call: ExternalCall, outcome: CallOutcome) -> None:
        self._open = call
        await self._record_call(call_of(self._runtime, call), call, is_begun=True)
        await self._close(call, outcome)

    async def _close(self, call: ExternalCall, outcome: CallOutcome) -> None:
        failpoint("result_not_recorded")
        await self._record_result(external_call_id(self._runtime, call.item_id), outcome, self._key(call.item_id))
        await self._release(call.item_id)

    async def _record_result(self, call: str, outcome: CallOutcome, key: str | None) -> None:
        whole, details = self._redact(outcome.text), self._redact(outcome.details)
        text = clip_middle(whole)
        blob = self._store_blob(whole.encode(errors="replace")) if self._store_blob and text != whole else ""
        await self._turn.record(Result(call, text, outcome.failed, blob=blob, details=details), key=key)

    async def _release(self, item: str) -> None:
        self._open, self._is_held = None, False
        self._closed.add(item)
        while self._deferred and self._open is None:
            await self._deferred.pop(0)()
        if self._running and self._open is None:
            await self.call_announced(self._running[next(iter(self._running))])

    async def _record_reply(self, reply: Reply, key: str | None) -> None:
        usage, self._usage = self._usage, Usage()
        told = Reply(reply.text, reply.saw, reply.calls, model=self.model, usage=usage)
        if not reply.calls:
            failpoint("reply_not_recorded")
        await self._turn.record(told, key=key)

    def _key(self, item: str) -> str:
        return f"{self._runtime}/{item}"
