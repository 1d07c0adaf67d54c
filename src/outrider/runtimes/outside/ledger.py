"""Writes down what another program does in a turn: once by its own ids, in an order that every prompt can show.

A call is recorded when it begins and closed before anything else is recorded, so a call and its result are neighbours.
"""

from collections.abc import Awaitable, Callable, Mapping
from hashlib import blake2b

from msgspec import Struct

from outrider.config.fail import failpoint
from outrider.core.events import Begun, Reply, Result
from outrider.core.parts import Call, Usage
from outrider.core.ports import Turn
from outrider.core.prompt import UNKNOWN

LONGEST = 20_000
"""Characters of one text that are kept; more is cut in its middle."""
GOES_ON = "[it goes on in the background]"
LATER = "[this began earlier and went on in the background]\n"
NOT_ALLOWED_YET = "not run: it waited for an answer when the work was interrupted"

Redact = Callable[[str], str]
Keep = Callable[[bytes], str]
Act = Callable[[], Awaitable[None]]


class Deed(Struct, frozen=True):
    """Something the other program does, under the id it has there."""

    item: str
    tool: str
    args: Mapping[str, object]


class Outcome(Struct, frozen=True):
    """What came of it."""

    text: str
    failed: bool = False
    details: str = ""


def call_of(runtime: str, deed: Deed) -> Call:
    """The call a deed is in our journal; its id is valid for every provider, and the same whenever it is read again."""
    return Call(call_id(runtime, deed.item), deed.tool, dict(deed.args))


def call_id(runtime: str, item: str) -> str:
    """Nine letters and digits; calls of our own loop begin with another letter."""
    return "x" + blake2b(f"{runtime}/{item}".encode(), digest_size=4).hexdigest()


def bounded(text: str, most: int = LONGEST) -> str:
    """The beginning and the end of a text that is too long, and how much is missing between them."""
    if len(text) <= most:
        return text
    head, tail = most // 3, most - most // 3
    return f"{text[:head]}\n[… {len(text) - most:,} characters left out …]\n{text[-tail:]}"


class Ledger:
    """The journal of one turn that another program carries."""

    def __init__(self, turn: Turn, runtime: str, redact: Redact, keep: Keep | None = None) -> None:
        """`keep` takes what is too long to be kept here, and says what it is called there."""
        self._keep = keep
        self._turn = turn
        self._runtime = runtime
        self._redact = redact
        self._open: Deed | None = None
        self._is_held = False
        self._running: dict[str, Deed] = {}
        """What began while another call was open."""
        self._gone_on: set[str] = set()
        """What was told to go on, and has not ended yet."""
        self._closed: set[str] = set()
        self._later: list[Act] = []
        self._said: tuple[str, str] | None = None
        self._usage = Usage()
        self.saw = turn.state().saw
        """The newest input that the other program was given."""
        self.model = ""

    async def said(self, item: str, text: str) -> None:
        """It finished a message. Recorded when the next thing is, so that its tokens can be told with it."""
        await self.flush()
        if text.strip():
            self._said = (item, text)

    def used(self, usage: Usage) -> None:
        """Tokens since this was last called; they are told with the next reply that is recorded."""
        self._usage += usage

    async def flush(self) -> None:
        """Record what was said and not yet recorded. Whoever speaks waits for no call: an open one goes on."""
        if self._said:
            (item, text), self._said = self._said, None

            async def reply() -> None:
                await self._reply(Reply(self._redact(text), self.saw), self._key(item))

            if self._open and self._is_held:
                self._later.append(reply)
                return
            await self._make_room()
            await reply()

    async def began(self, deed: Deed, *, is_held: bool = False, is_sure: bool = True) -> Call:
        """It is about to do this. `is_held`: until it ends, all else waits to be recorded (an answer, a tool of ours).

        `is_sure`: nothing will be asked first, so that it counts as begun from now on; see `begins`. While another call
        is open, this one is recorded when there is room; a held one makes room, and the other one goes on.
        """
        await self.flush()
        call = call_of(self._runtime, deed)
        is_open = self._open is not None and self._open.item == deed.item
        if is_held and not is_open:
            await self._make_room()
        if self._open is None:
            self._running.pop(deed.item, None)
            self._open, self._is_held = deed, is_held
            await self._intend(call, deed, is_begun=is_sure and not is_held)
        elif is_open:
            self._is_held = is_held
        else:
            self._running[deed.item] = deed
        return call

    async def begins(self, item: str) -> None:
        """What was held, or was not sure, is done now: allowed, or never asked about."""
        if self._open and self._open.item == item:
            self._is_held = False
            await self._turn.record(Begun(call_id(self._runtime, item)), key=self._key(item) + "/begun")
            failpoint("J7")

    async def ended(self, deed: Deed, outcome: Outcome) -> None:
        """It did this; told once, however often it is said."""
        await self.flush()
        if deed.item in self._gone_on:
            self._gone_on.discard(deed.item)
            late = Deed(f"{deed.item}/later", deed.tool, deed.args)
            await self._in_order(lambda: self._whole(late, Outcome(LATER + outcome.text, outcome.failed)))
        if deed.item in self._closed:
            return
        if self._open and self._open.item == deed.item:
            await self._close(deed, outcome)
        else:
            self._running.pop(deed.item, None)
            self._closed.add(deed.item)
            await self._in_order(lambda: self._whole(deed, outcome))

    async def returned(self, item: str) -> None:
        """A tool of ours has recorded the result of the call that is open."""
        if self._open and self._open.item == item:
            await self._free(item)

    async def close(self, why: str = UNKNOWN) -> None:
        """The turn is over there: nothing of it stays open here."""
        await self.flush()
        while self._open:
            call = call_id(self._runtime, self._open.item)
            is_asked = any(asked.call == call for asked in self._turn.state().questions.values())
            came = Outcome(NOT_ALLOWED_YET if is_asked else why, failed=is_asked or why == UNKNOWN)
            await self._close(self._open, came)
        state = self._turn.state()
        if state.owes_reply or state.saw < self.saw:
            await self._reply(Reply("", self.saw), None)

    def is_known(self, item: str) -> bool:
        """Whether this item was heard of here."""
        is_open = self._open is not None and self._open.item == item
        return is_open or item in self._closed or item in self._running

    async def settle(self, call: Call, outcome: Outcome, item: str = "") -> None:
        """A call that an earlier owner of this turn left open has come to this; `item` is its name there, if known."""
        if item:
            self._closed.add(item)
        await self._result(call.id, outcome, self._key(item) if item else None)

    async def _in_order(self, act: Act) -> None:
        if self._open:
            self._later.append(act)
        else:
            await act()

    async def _make_room(self) -> None:
        while self._open:
            self._gone_on.add(self._open.item)
            await self._close(self._open, Outcome(GOES_ON))

    async def _intend(self, call: Call, deed: Deed, *, is_begun: bool) -> None:
        failpoint("J6")
        await self._reply(Reply("", self.saw, (call,)), self._key(deed.item) + "/call")
        if is_begun:
            await self._turn.record(Begun(call.id), key=self._key(deed.item) + "/begun")
            failpoint("J7")

    async def _whole(self, deed: Deed, outcome: Outcome) -> None:
        self._open = deed
        await self._intend(call_of(self._runtime, deed), deed, is_begun=True)
        await self._close(deed, outcome)

    async def _close(self, deed: Deed, outcome: Outcome) -> None:
        failpoint("J8")
        await self._result(call_id(self._runtime, deed.item), outcome, self._key(deed.item))
        await self._free(deed.item)

    async def _result(self, call: str, outcome: Outcome, key: str | None) -> None:
        whole, details = self._redact(outcome.text), self._redact(outcome.details)
        text = bounded(whole)
        blob = self._keep(whole.encode(errors="replace")) if self._keep and text != whole else ""
        await self._turn.record(Result(call, text, outcome.failed, blob=blob, details=details), key=key)

    async def _free(self, item: str) -> None:
        self._open, self._is_held = None, False
        self._closed.add(item)
        while self._later and self._open is None:
            await self._later.pop(0)()
        if self._running and self._open is None:
            await self.began(self._running[next(iter(self._running))])

    async def _reply(self, reply: Reply, key: str | None) -> None:
        usage, self._usage = self._usage, Usage()
        told = Reply(reply.text, reply.saw, reply.calls, model=self.model, usage=usage)
        if not reply.calls:
            failpoint("J11")
        await self._turn.record(told, key=key)

    def _key(self, item: str) -> str:
        return f"{self._runtime}/{item}"
