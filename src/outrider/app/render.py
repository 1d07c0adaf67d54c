"""What happens in a session as JSON, in the same words on every surface and in the journal."""

from typing import Literal

import msgspec

from outrider.core.events import Delta, Entry, Event
from outrider.core.ports import Session

Json = dict[str, object]


def render_entry(entry: Entry) -> Json:
    """An entry, flat: its number, its time, its type, and whatever its body holds."""
    body: Json = msgspec.to_builtins(entry.body)
    return {"type": body.pop("type"), "seq": entry.seq, "at": entry.at, **body}


def render_event(event: Event) -> Json:
    match event:
        case Entry():
            return render_entry(event)
        case Delta(text=text, kind=kind):
            return {"type": "delta", "kind": kind, "text": text}


SessionStatus = Literal["idle", "waiting", "unfinished"]


def session_status(session: Session) -> SessionStatus:
    """In a word: whether something is left to do in it."""
    if session.is_open:
        return "unfinished"
    return "waiting" if session.has_work else "idle"
