"""Bodies and queries of our own API: requests (`New…`, `…Query`) and results (`…View`, `…List`)."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta, Struct, field

from outrider.app.api import PendingQuestion
from outrider.core.events import Body, Delta, Entry, render_entry, render_event
from outrider.core.question_text import whole_question
from outrider.core.store_port import SearchHit, Session, SessionStatus, session_status
from outrider.core.tasks import Task
from outrider.core.text import escape_invisible

MAX_ITEMS = 1_000
"""Of one list."""
Limit = Annotated[int, Meta(ge=1, le=MAX_ITEMS, description="maximum number of items")]
Cursor = Annotated[int, Meta(ge=0, description="only entries after this number")]
ModelName = Annotated[
    str, Meta(description="a model or a runtime, such as `codex` or `codex:gpt-5.5`; `GET /v1/models` lists them")
]
_ENTRY: dict[str, Any] = {
    "title": "Entry",
    "description": "One entry of the journal. `type` says what happened and which other fields there are.",
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
    q: Annotated[str, Meta(min_length=1, max_length=1_000, description="words to search for")]
    limit: Limit = 20


class EntriesQuery(Struct, frozen=True):
    after: Cursor = 0
    limit: Limit = 100


class EventsQuery(Struct, frozen=True):
    after: Cursor = 0
    until: Annotated[
        Literal["", "idle"], Meta(description="`idle`: end the stream when the session has no more work")
    ] = ""


class TasksQuery(Struct, frozen=True):
    session: Annotated[str, Meta(description="only tasks of this session")] = ""
    open: Annotated[bool, Meta(description="only tasks that have not ended")] = False
    limit: Limit = 100


class OutputQuery(Struct, frozen=True):
    start: Annotated[int, Meta(ge=-(2**53), le=2**53, description="first byte; negative: counted from the end")] = 0
    most: Annotated[int, Meta(ge=1, le=1_048_576, description="maximum number of bytes")] = 65_536


class NewSession(Struct, frozen=True, forbid_unknown_fields=True):
    """A session to create. Without a name it gets one; an existing name returns that session."""

    name: str = ""
    model: ModelName = ""


class SessionPatch(Struct, frozen=True, forbid_unknown_fields=True):
    """Changes to a session; what is omitted stays."""

    name: str | None = None
    model: ModelName = ""


class NewInput(Struct, frozen=True, forbid_unknown_fields=True):
    """A message for a session."""

    text: str = ""
    images: Annotated[tuple[bytes, ...], Meta(max_length=20, description="images, each in base64")] = ()


class StopRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """What to stop in addition to the turn and the commands it waits for."""

    tasks: bool = False
    """Whether to end background tasks too."""


class NewAnswer(Struct, frozen=True, forbid_unknown_fields=True):
    """An answer to a question: one of its choices."""

    answer: str


class NewTaskInput(Struct, frozen=True, forbid_unknown_fields=True):
    """Input for a command."""

    text: str = ""
    close: bool = False
    """Whether to close the command's input after this."""


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
    runtime: str
    """What runs its turns, e.g. `native` or `codex:gpt-5.5`."""


class SessionList(Struct, frozen=True):
    sessions: list[SessionView]
    """Latest first."""


class SearchHitView(Struct, frozen=True):
    """An entry that matches a search."""

    session: str
    name: str
    seq: int
    at: int
    excerpt: str


class SearchHitList(Struct, frozen=True):
    hits: list[SearchHitView] = field(name="found")


class InputReceipt(Struct, frozen=True):
    """An input that is durable and will be answered."""

    session: str
    seq: int
    at: int


class EntryList(Struct, frozen=True):
    entries: list[EntryJson]
    head: int
    """The number of the session's last entry; there are more entries when the last one here is before it."""


class StopResult(Struct, frozen=True):
    stopped: bool
    """Whether there was something to stop."""


class QuestionView(Struct, frozen=True):
    """A question that waits for an answer."""

    id: str
    """Its `ask` in the journal."""
    short_id: str
    """The id that `outrider questions` shows. A path accepts either."""
    session: str
    name: str
    person: str
    """Whose session asks."""
    question: str
    """What is asked. Long parts are cut, and each cut is marked."""
    whole: str
    """The same with nothing left out."""
    digest: str
    """The SHA-256 of what is asked. The answer holds for exactly that."""
    choices: tuple[str, ...]
    needs: tuple[str, ...]
    call: str
    can_answer: bool
    """Whether this key may answer it."""


class QuestionList(Struct, frozen=True):
    questions: list[QuestionView]
    """Longest waiting first."""


class AnswerReceipt(Struct, frozen=True):
    id: str
    answer: str


class TaskView(Struct, frozen=True):
    """A task: a command or a child session."""

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
    is_delivered: bool = field(name="is_told")
    """Whether its session was notified of its end."""
    is_interactive: bool
    """Whether its input can be written to while it runs."""
    watch: str
    grants: tuple[str, ...]
    child: str
    """The child session, for a task that is one."""


class TaskList(Struct, frozen=True):
    tasks: list[TaskView]
    """Latest first."""


HealthStatus = Literal["ok", "failing"]


class StoreHealth(Struct, frozen=True):
    seconds_since_ok: float | None = field(name="well")
    """Since a read and a write last succeeded."""
    read: float | None
    """Seconds the last read took."""
    write: float | None


class HealthView(Struct, frozen=True, omit_defaults=True):
    """Whether the server works. Without a key, only `status`; the counts are of the caller's own work, and of
    everyone's with a key that has the scope `admin`, which also gets the rest."""

    status: HealthStatus
    version: str = ""
    uptime: float = 0.0
    problem: str = ""
    store: StoreHealth | None = None
    is_worker_running: bool | None = field(default=None, name="is_carrying")
    sessions_waiting: int | None = None
    turns_running: int | None = None
    tasks_open: int | None = None
    webhooks_pending: int | None = None
    webhooks_failed: int | None = None


def render_session(session: Session, runtime: str) -> SessionView:
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


def render_search_hit(hit: SearchHit) -> SearchHitView:
    return SearchHitView(hit.session, hit.name, hit.seq, hit.at, hit.excerpt)


def render_pending_question(pending: PendingQuestion, *, can_answer: bool) -> QuestionView:
    session, asked = pending.session, pending.asked
    return QuestionView(
        id=asked.ask,
        short_id=pending.id,
        session=session.id,
        name=session.name,
        person=session.person,
        question=escape_invisible(asked.question),
        whole=whole_question(asked),
        digest=asked.digest,
        choices=asked.choices,
        needs=asked.needs,
        call=asked.call,
        can_answer=can_answer,
    )


def render_task(task: Task) -> TaskView:
    spec = task.spec
    return TaskView(
        id=task.id,
        kind=spec.kind,
        state=task.state,
        session=task.session,
        command=spec.command,
        description=spec.description,
        workspace=task.workspace,
        workdir=spec.workdir,
        created=task.created,
        ended=task.ended,
        exit_code=task.exit_code,
        why=task.why,
        address=spec.address,
        notify=spec.notify,
        is_delivered=task.is_delivered,
        is_interactive=spec.keeps_stdin_open,
        watch=spec.watch,
        grants=spec.grants,
        child=task.child,
    )


def encode_entry(entry: Entry) -> bytes:
    """The same entry is always the same bytes."""
    return msgspec.json.encode(render_entry(entry))


def encode_delta(delta: Delta) -> bytes:
    return msgspec.json.encode(render_event(delta))


def encode_stream_notice(kind: str, fields: Mapping[str, object]) -> bytes:
    """An event about the stream itself, e.g. that it ends."""
    return msgspec.json.encode({"type": kind, **fields})
