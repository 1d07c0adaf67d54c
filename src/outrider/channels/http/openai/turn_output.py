"""A turn as a chat completion: what of its entries and deltas is told, and how that looks on the wire. Pure."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from outrider.app.agent import Agent
from outrider.channels.http.errors import HttpError
from outrider.core.events import Changed, Compacted, Delta, Ended, Entry, Event, Input, Reply
from outrider.core.plan import AwaitAnswer, Bounds, State, decide, fold
from outrider.core.turn_result import is_final_reply
from outrider.core.types import Call, Usage
from outrider.engine.event_hub import FELL_BEHIND

REPLY_SEPARATOR = "\n\n"
"""Between two replies of one turn."""
_CALL_PREFIX = "call_"
_SESSION_CHARS = 22
"""Characters of a session's id in a call's id on the wire."""
FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]
_FINISH_REASONS: Mapping[str, FinishReason] = {
    "length": "length",
    "context window": "length",
    "content filter": "content_filter",
}


class TextChunk(Struct, frozen=True):
    """Words to send now."""

    text: str = ""
    restarts_reply: bool = False
    """Whether what was sent of this reply turned out to be wrong, and it begins anew."""


class TurnOutput:
    """What a turn has come to so far, seen from the entry at `seq` on.

    Entries alone give the whole text; deltas only give parts of it earlier. No words are told twice.
    """

    def __init__(self, seq: int, state: State, bounds: Bounds, *, is_live: bool = True) -> None:
        self.text = ""
        """Everything said."""
        self.calls: tuple[Call, ...] = ()
        """Calls that the client is to run."""
        self.usage = Usage()
        self.finish_reason: FinishReason = "stop"
        self.ended: Ended | None = None
        self.is_over = False
        self._seq = seq
        self._state = state
        self._bounds = bounds
        self._is_live = is_live
        """Whether deltas are about this request: not while an earlier one is still being answered."""
        self._latest_other_input = 0
        """The newest input of somebody else, or of another request."""
        self._sent = ""
        """What was sent of the reply being written."""
        self._draft: str | None = ""
        """What the deltas say of it; None when they are of no use until it is finished."""

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

    def _send(self, text: str, *, is_new_start: bool = False) -> TextChunk:
        """A piece of the reply being written, with a gap before its first."""
        if not text:
            return TextChunk()
        gap = REPLY_SEPARATOR if self.text and not self._sent else ""
        self._sent += text
        self.text += gap + text
        return TextChunk(gap + text, is_new_start)

    def _add_entry(self, entry: Entry) -> TextChunk:
        self._state = fold((entry,), self._state)
        piece = TextChunk()
        match entry.body:
            case Reply():
                piece = self._add_reply(entry.body)
            case Input(source="person"):
                self._latest_other_input = max(self._latest_other_input, entry.seq)
            case Compacted(usage=usage):
                self.usage += usage
            case Ended(saw=saw) if saw >= self._seq:
                piece = self._complete_reply(entry.body.partial)
                self.ended, self.is_over = entry.body, True
            case _:
                pass
        # Such an entry is written while the model is silent: when it speaks next, it has been asked with all there is.
        self._is_live = self._is_live or not isinstance(entry.body, Input | Changed)
        if (
            not self.is_over
            and not self._state.questions
            and isinstance(decide(self._state, {}, self._bounds), AwaitAnswer)
        ):
            self.calls, self.finish_reason, self.is_over = self._state.calls, "tool_calls", True
        return piece

    def _add_reply(self, reply: Reply) -> TextChunk:
        is_ours = reply.saw >= self._seq
        if is_ours:
            self.usage += reply.usage
            self.finish_reason = _FINISH_REASONS.get(reply.cut, "stop")
        piece = self._complete_reply(reply.text if is_ours else "")
        self._sent, self._draft = "", ""
        # What the turn says after this is about an input that came later.
        self.is_over = is_final_reply(reply, self._seq, self._latest_other_input)
        return piece

    def _complete_reply(self, text: str) -> TextChunk:
        """The whole text of the reply being written: send what is missing."""
        if text.startswith(self._sent):
            return self._send(text[len(self._sent) :])
        self._sent = ""
        return self._send(text, is_new_start=True)


def turn_error(ended: Ended) -> HttpError:
    """A turn that did not end well, as the answer to its request. Asking again would do its work again.

    So by a status that no client retries by itself; not all of them look at `x-should-retry`.
    """
    headers = {"x-should-retry": "false"}
    if ended.outcome == "interrupted":
        return HttpError(422, f"the turn was stopped: {ended.reason}", "turn_stopped", headers)
    if ended.reason.startswith("internal error"):
        return HttpError(500, "something went wrong inside; the log has more", "internal_error", headers)
    if ended.reason.startswith("stopped"):
        return HttpError(422, ended.reason, "limit_reached", headers)
    return HttpError(424, ended.reason, "turn_failed", headers)


def encode_call_id(session: str, call: str) -> str:
    """A call's id as clients are told it: it leads back to its session."""
    try:
        return _CALL_PREFIX + urlsafe_b64encode(bytes.fromhex(session)).decode().rstrip("=") + call
    except ValueError:
        return call


def parse_call_id(id: str) -> tuple[str, str]:
    """`(session, call)` of a call's id on the wire; no session when it is not of ours."""
    at = len(_CALL_PREFIX) + _SESSION_CHARS
    if not id.startswith(_CALL_PREFIX) or len(id) <= at:
        return "", id
    try:
        return urlsafe_b64decode(id[len(_CALL_PREFIX) : at] + "==").hex(), id[at:]
    except ValueError:
        return "", id


def bounds_of(agent: Agent) -> Bounds:
    """What a turn may use here."""
    limits = agent.config.limits
    return Bounds(limits.steps, limits.repeats, limits.spend)
