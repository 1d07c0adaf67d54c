"""A reply under construction: the parser of each wire fills a builder, and a complete one becomes a Reply."""

import msgspec

from outrider.core.errors import ContextTooLong, Refused, Unavailable
from outrider.core.events import Delta, Reply
from outrider.core.ports import Emit
from outrider.core.types import Call, Prices, Reasoning, Usage, call_id, cost

LENGTH_LIMIT = "length"
"""`Reply.cut` for a reply that reached its length limit."""
WINDOW_FULL = "context window"
"""`Reply.cut` for a reply that filled the model's window."""
_GAP = "\n\n"


class CallBuilder:
    """A tool call whose arguments are still arriving."""

    def __init__(self, tool: str, key: str = "") -> None:
        self.tool = tool
        self.key = key
        self._argument_pieces: list[str] = []

    def set_tool(self, tool: str) -> None:
        self.tool = tool

    def add_arguments(self, piece: str) -> None:
        self._argument_pieces.append(piece)

    @property
    def raw(self) -> str:
        return "".join(self._argument_pieces)

    def is_complete(self) -> bool:
        return _parse_object(self.raw) is not None

    def build(self, id: str, *, torn: bool) -> Call:
        """The finished call. `torn`: the reply was cut here, so missing arguments do not mean "no arguments"."""
        raw = self.raw
        args = {} if not raw.strip() and not torn else _parse_object(raw)
        return Call(id, self.tool, {}, broken=raw or "(cut off)") if args is None else Call(id, self.tool, args)


class ReplyBuilder:
    """The parts of one reply that have arrived."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._text: list[str] = []
        self._gap = False
        self.calls: list[CallBuilder] = []
        self.cut = ""
        """Why the reply ended early, or empty."""
        self._reasoning: list[Reasoning] = []
        self._usage = Usage()

    def add_text(self, text: str) -> None:
        if not text:
            return
        if self._gap and self._text:
            text = _GAP + text
        self._gap = False
        self._text.append(text)
        self._emit(Delta(text))

    def start_paragraph(self) -> None:
        """Begin the next text with a blank line."""
        self._gap = True

    def emit_reasoning(self, text: str) -> None:
        """Show reasoning as a delta. `add_reasoning` keeps it."""
        if text:
            self._emit(Delta(text, "reasoning"))

    def add_reasoning(self, reasoning: Reasoning) -> None:
        self._reasoning.append(reasoning)

    def set_usage(self, usage: Usage) -> None:
        self._usage = usage

    def set_cut(self, reason: str) -> None:
        self.cut = reason

    def start_call(self, tool: str, key: str = "") -> CallBuilder:
        call = CallBuilder(tool, key)
        self.calls.append(call)
        self._emit(Delta(tool, "call"))
        return call

    @property
    def text(self) -> str:
        return "".join(self._text)

    def build(self, saw: int, model: str, prices: Prices | None) -> Reply:
        """The finished reply. Raises Unavailable or Refused if it is empty."""
        text = self.text if self.text.strip() else ""
        if not text and not self.calls:
            raise self._empty_reply_error(model)
        newest = len(self.calls) - 1
        calls = tuple(
            call.build(call_id(saw, n), torn=bool(self.cut) and n == newest) for n, call in enumerate(self.calls)
        )
        price = cost(self._usage, prices) if prices is not None and self._usage != Usage() else None
        return Reply(text, saw, calls, tuple(self._reasoning), model, self._usage, price, self.cut)

    def _empty_reply_error(self, model: str) -> Refused | Unavailable:
        if self.cut == LENGTH_LIMIT:
            return Refused(f"{model} reached its length limit before it wrote anything; raise model.longest")
        if self.cut == WINDOW_FULL:
            return ContextTooLong(f"{model} has no room for a reply in its context window")
        if self.cut:
            return Refused(f"{model} did not answer ({self.cut})")
        return Unavailable("the model sent an empty reply")


def _parse_object(raw: str) -> dict[str, object] | None:
    try:
        return msgspec.json.decode(raw, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None
