"""Our own API's values as they travel: what requests hold (`New…`, `…Query`), and what is given back."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta, Struct

from outrider.core.events import Asked, Body, Delta, Entry, render_entry, render_event
from outrider.core.store_port import SearchHit, Session, SessionStatus, session_status
from outrider.core.tasks import Task

MAX_ITEMS = 1_000
"""Items of one list."""
Limit = Annotated[int, Meta(ge=1, le=MAX_ITEMS, description="at most so many")]
Cursor = Annotated[int, Meta(ge=0, description="only entries after the one of this number")]
ModelName = Annotated[
    str, Meta(description="a model, or a runtime such as `codex` or `codex:gpt-5.5`; `GET /v1/models` lists them")
]
_ENTRY: dict[str, Any] = {
    "title": "Entry",
    "description": "One line of the journal: `type` says what happened, and which fields there are besides these.",
    "type": "object",
    "properties": {
        "type": {"enum": [kind.__struct_config__.tag for kind in get_args(Body)]},
        "seq": {"type": "integer"},
        "at": {"type": "integer", "description": "milliseconds since 1970"},
    },
    "required": ["type", "seq", "at"],
}
EntryJson = Annotated[msgspec.Raw, Meta(extra_json_schema=_ENTRY)]


class ListQuery(Struct, frozen=True):
    limit: Limit = 100


class SessionSearchQuery(Struct, frozen=True):
    q: Annotated[str, Meta(min_length=1, max_length=1_000, description="words to look for")]
    limit: Limit = 20


class EntriesQuery(Struct, frozen=True):
    after: Cursor = 0
    limit: Limit = 100


class EventsQuery(Struct, frozen=True):
    after: Cursor = 0
    until: Annotated[
        Literal["", "idle"], Meta(description="`idle`: end the stream when nothing is left to do in the session")
    ] = ""


class TasksQuery(Struct, frozen=True):
    session: Annotated[str, Meta(description="only this session's")] = ""
    open: Annotated[bool, Meta(description="only those that have not ended")] = False
    limit: Limit = 100


class OutputQuery(Struct, frozen=True):
    start: Annotated[int, Meta(ge=-(2**53), le=2**53, description="from this byte on; negative: from the end")] = 0
    most: Annotated[int, Meta(ge=1, le=1_048_576, description="at most so many bytes")] = 65_536


class NewSession(Struct, frozen=True, forbid_unknown_fields=True):
    """A session to begin. Without a name it gets one; a name that is known gives that session."""

    name: str = ""
    model: ModelName = ""


class SessionPatch(Struct, frozen=True, forbid_unknown_fields=True):
    """What a session is to be called, and what is to answer in it; what is left out stays."""

    name: str | None = None
    model: ModelName = ""


class NewInput(Struct, frozen=True, forbid_unknown_fields=True):
    """Something to say in a session."""

    text: str = ""
    images: Annotated[tuple[bytes, ...], Meta(max_length=20, description="pictures, each in base64")] = ()


class StopRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """What to stop besides the turn and the commands it waits for."""

    tasks: bool = False
    """Whether tasks in the background are ended too."""


class NewAnswer(Struct, frozen=True, forbid_unknown_fields=True):
    """An answer to a question: one of its choices."""

    answer: str


class NewTaskInput(Struct, frozen=True, forbid_unknown_fields=True):
    """Something for a command to read."""

    text: str = ""
    close: bool = False
    """Whether that is all it will ever be given."""


class SessionView(Struct, frozen=True):
    """A session, without its journal."""

    id: str
    name: str
    title: str
    workspace: str
    state: SessionStatus
    created: int
    updated: int
    head: int
    """The number of its last entry."""
    runtime: str = ""
    """What carries its turns, e.g. `native` or `codex:gpt-5.5`. Not told in lists."""


class SessionList(Struct, frozen=True):
    sessions: list[SessionView]
    """Latest first."""


class SearchHitView(Struct, frozen=True):
    """One place where words were found."""

    session: str
    name: str
    seq: int
    at: int
    excerpt: str


class SearchHitList(Struct, frozen=True):
    found: list[SearchHitView]


class InputReceipt(Struct, frozen=True):
    """An input that is kept, and will be dealt with."""

    session: str
    seq: int
    at: int


class EntryList(Struct, frozen=True):
    entries: list[EntryJson]
    head: int
    """The number of the session's last entry; there is more when the last one here is before it."""


class StopResult(Struct, frozen=True):
    stopped: bool
    """Whether there was something to stop."""


class QuestionView(Struct, frozen=True):
    """A question that waits for an answer."""

    id: str
    session: str
    name: str
    question: str
    choices: tuple[str, ...]
    needs: tuple[str, ...]
    call: str


class QuestionList(Struct, frozen=True):
    questions: list[QuestionView]
    """Longest waiting first."""


class AnswerReceipt(Struct, frozen=True):
    id: str
    answer: str


class TaskView(Struct, frozen=True):
    """A task: a command, or a session that works for another."""

    id: str
    kind: str
    state: str
    session: str
    command: str
    description: str
    workspace: str
    workdir: str
    created: int
    ended: int
    exit_code: int | None
    why: str
    address: str
    notify: str
    is_told: bool
    is_interactive: bool
    """Whether it can be given something to read while it runs."""
    watch: str
    grants: tuple[str, ...]
    child: str
    """The session that is this task's body."""


class TaskList(Struct, frozen=True):
    tasks: list[TaskView]
    """Latest first."""


HealthStatus = Literal["ok", "failing"]


class StoreHealth(Struct, frozen=True):
    well: float | None
    """Seconds since a read and a write last came back."""
    read: float | None
    """Seconds the last read took."""
    write: float | None


class HealthView(Struct, frozen=True, omit_defaults=True):
    """Whether this Outrider works. Without a key, only `status`."""

    status: HealthStatus
    version: str = ""
    uptime: float = 0.0
    problem: str = ""
    store: StoreHealth | None = None
    is_carrying: bool | None = None
    """Whether turns are carried."""
    sessions_waiting: int | None = None
    turns_running: int | None = None
    tasks_open: int | None = None
    webhooks_pending: int | None = None
    """Still to be sent."""
    webhooks_failed: int | None = None
    """Given up."""


def render_session(session: Session, runtime: str = "") -> SessionView:
    return SessionView(
        id=session.id,
        name=session.name,
        title=session.title,
        workspace=session.workspace,
        state=session_status(session),
        created=session.created,
        updated=session.updated,
        head=session.head,
        runtime=runtime,
    )


def render_search_hit(found: SearchHit) -> SearchHitView:
    return SearchHitView(found.session, found.name, found.seq, found.at, found.excerpt)


def render_question(session: Session, asked: Asked) -> QuestionView:
    return QuestionView(
        id=asked.ask,
        session=session.id,
        name=session.name,
        question=asked.question,
        choices=asked.choices,
        needs=asked.needs,
        call=asked.call,
    )


def render_task(task: Task) -> TaskView:
    wish = task.spec
    return TaskView(
        id=task.id,
        kind=wish.kind,
        state=task.state,
        session=task.session,
        command=wish.command,
        description=wish.description,
        workspace=task.workspace,
        workdir=wish.workdir,
        created=task.created,
        ended=task.ended,
        exit_code=task.exit_code,
        why=task.why,
        address=wish.address,
        notify=wish.notify,
        is_told=task.is_delivered,
        is_interactive=wish.keeps_stdin_open,
        watch=wish.watch,
        grants=wish.grants,
        child=task.child,
    )


def encode_entry(entry: Entry) -> bytes:
    """The same entry is always the same bytes, whenever and wherever it is read."""
    return msgspec.json.encode(render_entry(entry))


def encode_delta(delta: Delta) -> bytes:
    return msgspec.json.encode(render_event(delta))


def encode_stream_notice(kind: str, fields: Mapping[str, object]) -> bytes:
    """What a stream says of itself, e.g. that it is over."""
    return msgspec.json.encode({"type": kind, **fields})
