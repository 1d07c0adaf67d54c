"""The output of a turn for one request: text, calls and usage, from the session's entries and deltas."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from contextlib import aclosing
from typing import Literal

from msgspec import Struct

from outrider.app.agent import Agent
from outrider.channels.http.errors import HttpError
from outrider.core.errors import Unavailable
from outrider.core.events import Changed, Compacted, Delta, Ended, Entry, Event, Input, Reply
from outrider.core.plan import AwaitAnswer, Bounds, State, decide, fold
from outrider.core.store_port import Session
from outrider.core.turn_result import is_final_reply
from outrider.core.types import Call, Usage
from outrider.engine.event_hub import FELL_BEHIND

REPLY_SEPARATOR = "\n\n"
"""Between two replies of one turn."""
_CALL_PREFIX = "call_"
_SESSION_CHARS = 22
"""Of a session's id within a call's id on the wire."""
FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]
_FINISH_REASONS: Mapping[str, FinishReason] = {
    "length": "length",
    "context window": "length",
    "content filter": "content_filter",
}


class TextChunk(Struct, frozen=True):
    """Text to send now."""

    text: str = ""
    restarts_reply: bool = False
    """Whether what was sent of this reply was wrong, so that it starts over with this text."""


class TurnOutput:
    """What a turn has produced so far for the request at entry `seq`.

    Entries alone give the whole text; deltas only give parts of it earlier. No text is sent twice.
    """

    def __init__(self, seq: int, state: State, bounds: Bounds, *, is_live: bool = True) -> None:
        self.text = ""
        """All text so far."""
        self.calls: tuple[Call, ...] = ()
        """Calls that the client must run."""
        self.usage = Usage()
        self.finish_reason: FinishReason = "stop"
        self.ended: Ended | None = None
        self.is_over = False
        self.seq = seq
        self._state = state
        self._bounds = bounds
        self._is_live = is_live
        """Whether deltas belong to this request: not while an earlier one is still being answered."""
        self._latest_other_input = 0
        """The newest input of another request."""
        self._sent = ""
        """What was sent of the reply being written."""
        self._draft: str | None = ""
        """The same according to the deltas; None when they cannot be used until the reply is finished."""

    def add(self, event: Event) -> TextChunk:
        match event:
            case Delta(text=text, kind="text"):
                return self._add_delta(text)
            case Delta(kind="reset"):
                self._draft = None if event == FELL_BEHIND else ""
                return TextChunk()
            case Delta():
                return TextChunk()
            case Entry():
                return self._add_entry(event)

    def _add_delta(self, text: str) -> TextChunk:
        if not self._is_live or self._draft is None:
            return TextChunk()
        self._draft += text
        if self._draft.startswith(self._sent):
            return self._send(self._draft[len(self._sent) :])
        if not self._sent.startswith(self._draft):
            self._draft = None
        return TextChunk()

    def _send(self, text: str, *, restarts_reply: bool = False) -> TextChunk:
        """More of the reply being written, separated from the reply before it."""
        if not text:
            return TextChunk()
        separator = REPLY_SEPARATOR if self.text and not self._sent else ""
        self._sent += text
        self.text += separator + text
        return TextChunk(separator + text, restarts_reply)

    def _add_entry(self, entry: Entry) -> TextChunk:
        self._state = fold((entry,), self._state)
        chunk = TextChunk()
        match entry.body:
            case Reply():
                chunk = self._add_reply(entry.body)
            case Input(source="person"):
                self._latest_other_input = max(self._latest_other_input, entry.seq)
            case Compacted(usage=usage):
                self.usage += usage
            case Ended(saw=saw) if saw >= self.seq:
                chunk = self._complete_reply(entry.body.partial)
                self.ended, self.is_over = entry.body, True
            case _:
                pass
        # Any other entry is recorded between two model requests, and the next request includes this input.
        self._is_live = self._is_live or not isinstance(entry.body, Input | Changed)
        if (
            not self.is_over
            and not self._state.questions
            and isinstance(decide(self._state, {}, self._bounds), AwaitAnswer)
        ):
            self.calls, self.finish_reason, self.is_over = self._state.calls, "tool_calls", True
        return chunk

    def _add_reply(self, reply: Reply) -> TextChunk:
        is_ours = reply.saw >= self.seq
        if is_ours:
            self.usage += reply.usage
            self.finish_reason = _FINISH_REASONS.get(reply.cut, "stop")
        chunk = self._complete_reply(reply.text if is_ours else "")
        self._sent, self._draft = "", ""
        # What follows in the turn answers a later input.
        self.is_over = is_final_reply(reply, self.seq, self._latest_other_input)
        return chunk

    def _complete_reply(self, text: str) -> TextChunk:
        """Send what is missing of the reply, now that its whole text is known."""
        if text.startswith(self._sent):
            return self._send(text[len(self._sent) :])
        self._sent = ""
        return self._send(text, restarts_reply=True)


async def follow_to_end(agent: Agent, session: Session, output: TurnOutput) -> Entry:
    """Read the session's entries until the output is complete; the entry that completed it."""
    async with aclosing(agent.follow(session, output.seq)) as events:
        async for event in events:
            if isinstance(event, Entry):  # deltas only announce what entries say
                output.add(event)
                if output.is_over:
                    return event
    raise AssertionError("following a session never ends by itself")


def unavailable_error(error: Unavailable, headers: Mapping[str, str], *, is_repeatable: bool) -> HttpError:
    """503 for a request whose turn is recorded and continues: a retry without an idempotency key would run it twice."""
    more = {"retry-after": str(max(1, int(error.retry_after or 1)))}
    more |= {} if is_repeatable else {"x-should-retry": "false"}
    return HttpError(503, str(error), "unavailable", {**headers, **more})


def turn_error(ended: Ended) -> HttpError:
    """The error response for a turn that failed or was stopped.

    A retry would run the turn again, so the status is one that clients do not retry, even if they ignore
    `x-should-retry`.
    """
    headers = {"x-should-retry": "false"}
    if ended.outcome == "interrupted":
        return HttpError(422, f"the turn was stopped: {ended.reason}", "turn_stopped", headers)
    if ended.reason.startswith("internal error"):
        return HttpError(500, "internal error; see the log", "internal_error", headers)
    if ended.reason.startswith("stopped"):
        return HttpError(422, ended.reason, "limit_reached", headers)
    return HttpError(424, ended.reason, "turn_failed", headers)


def encode_call_id(session: str, call: str) -> str:
    """A call's id on the wire, which includes its session's id."""
    try:
        return _CALL_PREFIX + urlsafe_b64encode(bytes.fromhex(session)).decode().rstrip("=") + call
    except ValueError:
        return call


def parse_call_id(id: str) -> tuple[str, str]:
    """`(session, call)` of a call's id on the wire; an empty session for an id that is not ours."""
    at = len(_CALL_PREFIX) + _SESSION_CHARS
    if not id.startswith(_CALL_PREFIX) or len(id) <= at:
        return "", id
    try:
        return urlsafe_b64decode(id[len(_CALL_PREFIX) : at] + "==").hex(), id[at:]
    except ValueError:
        return "", id


def bounds_of(agent: Agent) -> Bounds:
    """The limits of a turn."""
    limits = agent.config.limits
    return Bounds(limits.steps, limits.repeats, limits.spend)
