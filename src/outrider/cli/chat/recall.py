"""The end of an earlier session in a few lines, for whoever comes back to it. Pure."""

from collections.abc import Callable, Iterable, Sequence

from outrider.cli.chat.shows import Block, Note, Output, Person, Question, Ran, Show
from outrider.cli.chat.view import View
from outrider.core.events import Entry

_EXCHANGES = 2
_LONGEST = 1_200
"""Characters of one block."""
_MOST = 12
"""Things shown in all."""


def recall(journal: Iterable[Entry], steers: Callable[[str], bool] = lambda runtime: False) -> Sequence[Show]:
    """What was said last, the calls left out, and so is a question that waits: whoever opens a session shows that.

    `steers` as in `View`.
    """
    view, shows = View(steers=steers), list[Show]()
    for entry in journal:
        shows += view.take(entry)
    said = [
        _short(show)
        for show in _without_calls(shows)
        if not (isinstance(show, Question) and show.ask in view.state.questions)
    ]
    begins = [index for index, show in enumerate(said) if isinstance(show, Person)]
    if not begins:
        return []
    start = begins[-_EXCHANGES] if len(begins) >= _EXCHANGES else begins[0]
    last = said[start:]
    if len(last) > _MOST:
        last = [last[0], Note("…"), *last[-(_MOST - 2) :]]
    return [Note("earlier in this session:"), *last] if start else last


def _without_calls(shows: Iterable[Show]) -> Iterable[Show]:
    is_of_call = False
    for show in shows:
        is_of_call = isinstance(show, Ran) or (is_of_call and isinstance(show, Output))
        if not is_of_call:
            yield show


def _short(show: Show) -> Show:
    match show:
        case Block(text=text) if len(text) > _LONGEST:
            return Note(f"{text[:_LONGEST]} …", "plain")
        case Person(text=text) if len(text) > _LONGEST:
            return Person(f"{text[:_LONGEST]} …")
        case _:
            return show
