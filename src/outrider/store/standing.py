"""Where a session's journal stands: the columns that repeat it, and how each entry moves them."""

from msgspec import Struct
from msgspec.structs import replace

from outrider.core.events import Body, Ended, Input, Reply, Started

MAX_TITLE = 80


class SessionRow(Struct, frozen=True):
    """In the order of `sql.STANDING`."""

    title: str = ""
    touched: int = 0
    """Microseconds since 1970, greater with every entry even when the clock jumps back."""
    generation: int = 0
    head: int = 0
    saw: int = 0
    newest_input: int = 0
    is_open: int = 0
    waits_since: int | None = None
    """Microseconds; None while there is nothing to do."""
    payer: str = ""
    """The key that pays for what is done now: that of the person's newest input."""

    @property
    def has_work(self) -> bool:
        return bool(self.is_open) or self.newest_input > self.saw


def apply_entry(before: SessionRow, body: Body, now: int) -> SessionRow:
    """After one more entry, written at `now` (microseconds)."""
    head, touched = before.head + 1, max(now, before.touched + 1)
    after = replace(before, head=head, touched=touched)
    match body:
        case Input(text=text, source=source):
            payer = body.payer if source == "person" else before.payer
            after = replace(after, newest_input=head, title=before.title or make_title(text), payer=payer)
        case Started():
            after = replace(after, is_open=1)
        case Reply(saw=saw):
            after = replace(after, saw=max(before.saw, saw))
        case Ended(saw=saw):
            after = replace(after, saw=max(before.saw, saw), is_open=0)
        case _:
            pass
    if not after.has_work:
        return replace(after, waits_since=None)
    return after if after.waits_since is not None else replace(after, waits_since=touched)


def make_title(text: str) -> str:
    """The beginning of a text in one line."""
    return " ".join(text[: 4 * MAX_TITLE].split())[:MAX_TITLE]
