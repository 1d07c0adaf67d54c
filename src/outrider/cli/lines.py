"""Events as JSON lines: what `--json` prints, the same words as in the journal."""

from collections.abc import Mapping, Sequence

import msgspec

from outrider.app.render import Json as Json
from outrider.app.render import render_entry as render_entry
from outrider.app.render import render_event as render_event
from outrider.app.render import session_status as session_status
from outrider.core.outcome import TurnResult
from outrider.core.ports import SearchHit, Session


def render_turn_result(finished: TurnResult, session: Session, tasks: Sequence[str] = ()) -> Json:
    """What a turn came to: the last line of its stream. `tasks` are those that go on without it."""
    return {"type": "finished", "name": session.name, **msgspec.to_builtins(finished), "tasks": list(tasks)}


def render_session(session: Session) -> Json:
    return {**msgspec.to_builtins(session), "state": session_status(session)}


def render_search_hit(found: SearchHit) -> Json:
    return msgspec.to_builtins(found)


def encode_json(value: Mapping[str, object] | list[Json], *, is_pretty: bool = False) -> str:
    content = msgspec.json.encode(value)
    return (msgspec.json.format(content, indent=2) if is_pretty else content).decode()
