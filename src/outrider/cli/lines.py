"""Events as JSON lines: what `--json` prints, the same words as in the journal."""

from collections.abc import Mapping, Sequence

import msgspec

from outrider.core.events import Delta, Entry, Event
from outrider.core.outcome import Finished
from outrider.core.ports import Found, Session

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


def render_finished(finished: Finished, session: Session, tasks: Sequence[str] = ()) -> Json:
    """What a turn came to: the last line of its stream. `tasks` are those that go on without it."""
    return {"type": "finished", "name": session.name, **msgspec.to_builtins(finished), "tasks": list(tasks)}


def render_session(session: Session) -> Json:
    return {**msgspec.to_builtins(session), "state": state_of(session)}


def render_found(found: Found) -> Json:
    return msgspec.to_builtins(found)


def state_of(session: Session) -> str:
    """In a word: whether something is left to do in it."""
    if session.is_open:
        return "unfinished"
    return "waiting" if session.has_work else "idle"


def encode(value: Mapping[str, object] | list[Json], *, is_pretty: bool = False) -> str:
    content = msgspec.json.encode(value)
    return (msgspec.json.format(content, indent=2) if is_pretty else content).decode()
