"""A turn as a chat completion: what of its entries and deltas is told, and how that looks on the wire. Pure."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from msgspec import Struct

from outrider.app.acting import is_final_reply
from outrider.channels.http.failures import HttpError
from outrider.core.events import Changed, Compacted, Delta, Ended, Entry, Event, Input, Reply
from outrider.core.parts import Call, Usage
from outrider.core.plan import AwaitAnswer, Bounds, State, decide, fold
from outrider.engine.follow import FELL_BEHIND

GAP = "\n\n"
"""Between two replies of one turn."""
AGAIN = ": the words above were taken back; the reply begins anew\n\n"
_OURS = "call_"
_SESSION = 22
"""Characters of a session's id in a call's id on the wire."""

Finish = Literal["stop", "length", "tool_calls", "content_filter"]
_CUTS: Mapping[str, Finish] = {"length": "length", "context window": "length", "content filter": "content_filter"}


class Piece(Struct, frozen=True):
    """Words to send now."""

    text: str = ""
    is_new_start: bool = False
    """Whether what was sent of this reply turned out to be wrong, and it begins anew."""


class Progress:
    """What a turn has come to so far, seen from the entry at `seq` on.

    Entries alone give the whole text; deltas only give parts of it earlier. No words are told twice.
    """

    def __init__(self, seq: int, state: State, bounds: Bounds, *, is_live: bool = True) -> None:
        self.text = ""
        """Everything said."""
        self.calls: tuple[Call, ...] = ()
        """Calls that the client is to run."""
        self.usage = Usage()
        self.finish: Finish = "stop"
        self.ended: Ended | None = None
        self.is_over = False
        self._seq = seq
        self._state = state
        self._bounds = bounds
        self._is_live = is_live
        """Whether deltas are about this request: not while an earlier one is still being answered."""
        self._others = 0
        """The newest input of somebody else, or of another request."""
        self._sent = ""
        """What was sent of the reply being written."""
        self._draft: str | None = ""
        """What the deltas say of it; None when they are of no use until it is finished."""

    def take(self, event: Event) -> Piece:
        match event:
            case Delta(text=text, kind="text"):
                return self._hint(text)
            case Delta(kind="reset"):
                self._draft = None if event == FELL_BEHIND else ""
                return Piece()
            case Delta():
                return Piece()
            case Entry():
                return self._fact(event)

    def _hint(self, text: str) -> Piece:
        if not self._is_live or self._draft is None:
            return Piece()
        self._draft += text
        if self._draft.startswith(self._sent):
            return self._send(self._draft[len(self._sent) :])
        if not self._sent.startswith(self._draft):
            self._draft = None
        return Piece()

    def _send(self, text: str, *, is_new_start: bool = False) -> Piece:
        """A piece of the reply being written, with a gap before its first."""
        if not text:
            return Piece()
        gap = GAP if self.text and not self._sent else ""
        self._sent += text
        self.text += gap + text
        return Piece(gap + text, is_new_start)

    def _fact(self, entry: Entry) -> Piece:
        self._state = fold((entry,), self._state)
        piece = Piece()
        match entry.body:
            case Reply():
                piece = self._reply(entry.body)
            case Input(source="person"):
                self._others = max(self._others, entry.seq)
            case Compacted(usage=usage):
                self.usage += usage
            case Ended(saw=saw) if saw >= self._seq:
                piece = self._settle(entry.body.partial)
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
            self.calls, self.finish, self.is_over = self._state.calls, "tool_calls", True
        return piece

    def _reply(self, reply: Reply) -> Piece:
        is_ours = reply.saw >= self._seq
        if is_ours:
            self.usage += reply.usage
            self.finish = _CUTS.get(reply.cut, "stop")
        piece = self._settle(reply.text if is_ours else "")
        self._sent, self._draft = "", ""
        # What the turn says after this is about an input that came later.
        self.is_over = is_final_reply(reply, self._seq, self._others)
        return piece

    def _settle(self, text: str) -> Piece:
        """The whole text of the reply being written: send what is missing."""
        if text.startswith(self._sent):
            return self._send(text[len(self._sent) :])
        self._sent = ""
        return self._send(text, is_new_start=True)


def failure(ended: Ended) -> HttpError:
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


def wire_call(session: str, call: str) -> str:
    """A call's id as clients are told it: it leads back to its session."""
    try:
        return _OURS + urlsafe_b64encode(bytes.fromhex(session)).decode().rstrip("=") + call
    except ValueError:
        return call


def parse_call(id: str) -> tuple[str, str]:
    """`(session, call)` of a call's id on the wire; no session when it is not of ours."""
    at = len(_OURS) + _SESSION
    if not id.startswith(_OURS) or len(id) <= at:
        return "", id
    try:
        return urlsafe_b64decode(id[len(_OURS) : at] + "==").hex(), id[at:]
    except ValueError:
        return "", id


class Envelope(Struct, frozen=True):
    """What every part of one completion repeats."""

    id: str
    created: int
    model: str
    session: str
    wants_usage: bool = False

    def chunk(self, delta: dict[str, Any], finish: str | None = None) -> bytes:
        choices = [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]
        return self._chunk(choices, None)

    def usage(self, usage: Usage) -> bytes:
        return self._chunk([], usage)

    def calls(self, calls: tuple[Call, ...]) -> bytes:
        return self.chunk({"tool_calls": [{"index": n, **self._call(call)} for n, call in enumerate(calls)]})

    def completion(self, progress: Progress) -> bytes:
        message: dict[str, Any] = {"role": "assistant", "content": progress.text or None, "refusal": None}
        if progress.calls:
            message["tool_calls"] = [self._call(call) for call in progress.calls]
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": progress.finish}
        fields = self._fields("chat.completion", [choice])
        return msgspec.json.encode({**fields, "usage": render_usage(progress.usage)})

    def _chunk(self, choices: list[dict[str, Any]], usage: Usage | None) -> bytes:
        fields = self._fields("chat.completion.chunk", choices)
        if self.wants_usage:
            fields["usage"] = render_usage(usage) if usage else None
        return msgspec.json.encode(fields)

    def _fields(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}

    def _call(self, call: Call) -> dict[str, Any]:
        arguments = call.broken or msgspec.json.encode(call.args).decode()
        function = {"name": call.tool, "arguments": arguments}
        return {"id": wire_call(self.session, call.id), "type": "function", "function": function}


def render_usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }
