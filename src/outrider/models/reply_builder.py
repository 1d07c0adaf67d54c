"""One reply while it is being written: every wire's parser fills a draft, and a whole draft becomes a Reply. Pure."""

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
    """A call whose arguments still arrive."""

    def __init__(self, tool: str, key: str = "") -> None:
        self.tool = tool
        self.key = key
        self._argument_pieces: list[str] = []

    def add_arguments(self, piece: str) -> None:
        self._argument_pieces.append(piece)

    @property
    def raw(self) -> str:
        return "".join(self._argument_pieces)

    def is_complete(self) -> bool:
        return _parse_object(self.raw) is not None

    def build(self, id: str, *, torn: bool) -> Call:
        """As written; `torn` when the reply was cut, so that missing arguments are not taken for none."""
        raw = self.raw
        args = {} if not raw.strip() and not torn else _parse_object(raw)
        return Call(id, self.tool, {}, broken=raw or "(cut off)") if args is None else Call(id, self.tool, args)


class ReplyBuilder:
    """What has arrived of one reply."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._text: list[str] = []
        self._gap = False
        self.calls: list[CallBuilder] = []
        self.reasoning: list[Reasoning] = []
        self.usage = Usage()
        self.cut = ""

    def add_text(self, text: str) -> None:
        if not text:
            return
        if self._gap and self._text:
            text = _GAP + text
        self._gap = False
        self._text.append(text)
        self._emit(Delta(text))

    def start_paragraph(self) -> None:
        """Whatever text comes next is a paragraph of its own."""
        self._gap = True

    def emit_reasoning(self, text: str) -> None:
        """Shown only; what is to be kept goes into `reasoning`."""
        if text:
            self._emit(Delta(text, "reasoning"))

    def start_call(self, tool: str, key: str = "") -> CallBuilder:
        call = CallBuilder(tool, key)
        self.calls.append(call)
        self._emit(Delta(tool, "call"))
        return call

    @property
    def text(self) -> str:
        return "".join(self._text)

    def build(self, saw: int, model: str, prices: Prices | None) -> Reply:
        """The finished reply. Raises Unavailable or Refused when there is nothing in it."""
        text = self.text if self.text.strip() else ""
        if not text and not self.calls:
            raise self._empty_reply_error(model)
        newest = len(self.calls) - 1
        calls = tuple(
            call.build(call_id(saw, n), torn=bool(self.cut) and n == newest) for n, call in enumerate(self.calls)
        )
        known = prices is not None and self.usage != Usage()
        return Reply(
            text,
            saw,
            calls,
            tuple(self.reasoning),
            model,
            self.usage,
            cost(self.usage, prices) if prices is not None and known else None,
            self.cut,
        )

    def _empty_reply_error(self, model: str) -> Refused | Unavailable:
        if self.cut == LENGTH_LIMIT:
            return Refused(f"{model} reached its length limit before it said anything; raise model.longest")
        if self.cut == WINDOW_FULL:
            return ContextTooLong(f"{model} has no room left for a reply in its window")
        if self.cut:
            return Refused(f"{model} gave no answer ({self.cut})")
        return Unavailable("the model sent an empty reply")


def _parse_object(raw: str) -> dict[str, object] | None:
    try:
        return msgspec.json.decode(raw, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None
