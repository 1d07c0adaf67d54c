"""The end of an earlier session in a few lines, for whoever comes back to it. Pure."""

from collections.abc import Callable, Iterable, Sequence

from outrider.cli.chat.shows import DisplayItem, Note, OutputLines, QuestionText, ReplyBlock, ToolLine, UserText
from outrider.cli.chat.view import ChatSessionView
from outrider.core.events import Entry

_RECAP_EXCHANGES = 2
_MAX_RECAP_BLOCK_CHARS = 1_200
"""Characters of one block."""
_MAX_RECAP_ITEMS = 12
"""Things shown in all."""


def recap(journal: Iterable[Entry], steers: Callable[[str], bool] = lambda runtime: False) -> Sequence[DisplayItem]:
    """What was said last, the calls left out, and so is a question that waits: whoever opens a session shows that.

    `steers` as in `View`.
    """
    view, shows = ChatSessionView(steers=steers), list[DisplayItem]()
    for entry in journal:
        shows += view.apply(entry)
    said = [
        _shorten(show)
        for show in _without_calls(shows)
        if not (isinstance(show, QuestionText) and show.question_id in view.state.questions)
    ]
    begins = [index for index, show in enumerate(said) if isinstance(show, UserText)]
    if not begins:
        return []
    start = begins[-_RECAP_EXCHANGES] if len(begins) >= _RECAP_EXCHANGES else begins[0]
    last = said[start:]
    if len(last) > _MAX_RECAP_ITEMS:
        last = [last[0], Note("…"), *last[-(_MAX_RECAP_ITEMS - 2) :]]
    return [Note("earlier in this session:"), *last] if start else last


def _without_calls(shows: Iterable[DisplayItem]) -> Iterable[DisplayItem]:
    is_of_call = False
    for show in shows:
        is_of_call = isinstance(show, ToolLine) or (is_of_call and isinstance(show, OutputLines))
        if not is_of_call:
            yield show


def _shorten(show: DisplayItem) -> DisplayItem:
    match show:
        case ReplyBlock(text=text) if len(text) > _MAX_RECAP_BLOCK_CHARS:
            return Note(f"{text[:_MAX_RECAP_BLOCK_CHARS]} …", "plain")
        case UserText(text=text) if len(text) > _MAX_RECAP_BLOCK_CHARS:
            return UserText(f"{text[:_MAX_RECAP_BLOCK_CHARS]} …")
        case _:
            return show
