"""The agent: `AgentApi` in the process that owns the home. The command line, HTTP and Python programs call it."""

import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from math import inf
from pathlib import Path

import anyio
from msgspec import Struct
from msgspec.structs import replace

from outrider.app.addresses import PYTHON
from outrider.app.api import DEFAULT_PERSON, AgentApi, PendingQuestion, check_runtime_choice, default_model_name
from outrider.app.health import HealthReport, OwnWork, check_health, count_own_work
from outrider.app.workspaces import create_workspace, find_identity, has_same_folder
from outrider.config.schema import Config
from outrider.core.approvals import SESSION, WORKSPACE, Permission
from outrider.core.errors import Refused, Unavailable
from outrider.core.events import Asked, Body, Changed, Ended, Entry, Event, Input, Reply, Result
from outrider.core.plan import fold
from outrider.core.ports import Commands
from outrider.core.store_port import Blobs, FullStore, Key, KeySpec, SearchHit, Session
from outrider.core.tasks import Task
from outrider.core.turn_result import TurnResult, turn_result
from outrider.core.types import Image, ToolSpec, WorkspaceIdentity
from outrider.engine.event_hub import EventHub
from outrider.engine.inbox import Inbox, InboxMessage
from outrider.engine.task_supervisor import TaskSupervisor
from outrider.engine.worker import Worker
from outrider.system.images import media_type


class Home(Struct, frozen=True):
    """The parts of an open home."""

    config: Config
    store: FullStore
    blobs: Blobs
    commands: Commands
    inbox: Inbox
    redact: Callable[[str], str]
    """Removes secrets from text."""
    notices: tuple[str, ...] = ()
    workspace: Path | None = None
    """The workspace of new sessions; without one, each gets a folder of its own."""
    identity: WorkspaceIdentity | None = None
    """Which folder that was when a person named it."""


class Agent(AgentApi):
    """An open home, as one person sees it."""

    default_address = f"{PYTHON}:api"

    def __init__(
        self,
        home: Home,
        hub: EventHub,
        worker: Worker,
        task_supervisor: TaskSupervisor,
        person: str = DEFAULT_PERSON,
        payer: str = "",
        *,
        can_approve: bool = True,
    ) -> None:
        self.home = home
        self.person = person
        """Whose sessions and tasks the operations see; those of other people do not exist for them."""
        self._payer = payer
        self._can_approve = can_approve
        self._store = home.store
        self._hub = hub
        self._worker = worker
        self._task_supervisor = task_supervisor

    @property
    def config(self) -> Config:
        return self.home.config

    @property
    def notices(self) -> Sequence[str]:
        return self.home.notices

    @property
    def commands(self) -> Commands:
        return self.home.commands

    @property
    def is_client(self) -> bool:
        return False

    @property
    def default_model(self) -> str:
        return default_model_name(self.config)

    @property
    def default_runtime(self) -> str:
        return self.config.default_runtime

    def owner_mismatch(self, settings: Mapping[str, str]) -> str:
        return ""

    async def wait_owner_changed(self) -> None:
        await anyio.sleep_forever()

    def in_workspace(self, workspace: Path | None) -> "Agent":
        """The same home with another workspace for new sessions."""
        home = replace(self.home, workspace=workspace, identity=find_identity(workspace))
        parts = (self._hub, self._worker, self._task_supervisor)
        return Agent(home, *parts, self.person, self._payer, can_approve=self._can_approve)

    def for_person(self, person: str, payer: str = "", *, can_approve: bool | None = None) -> "Agent":
        """The same home as this person sees it. `payer` is the id of the key that pays for what is said.

        Unless `can_approve` says otherwise, only the owner answers questions.
        """
        may_answer = person == DEFAULT_PERSON if can_approve is None else can_approve
        return Agent(self.home, self._hub, self._worker, self._task_supervisor, person, payer, can_approve=may_answer)

    async def post(
        self,
        text: str,
        *,
        session: Session,
        images: Sequence[bytes] = (),
        key: str | None = None,
        address: str = "",
        tools: Sequence[ToolSpec] = (),
    ) -> Entry:
        """As declared. `tools` are the sender's own: the turn waits for the results of their calls."""
        stored = tuple(Image(self.home.blobs.put(content), media_type(content)) for content in images)
        message = InboxMessage(text, stored, key, address, tuple(tools), self._payer)
        entry, _ = await self.home.inbox.accept(session, message)
        return entry

    async def submit_results(self, session: Session, results: Sequence[Result]) -> None:
        """Record the results of calls of the sender's own tools; the turn continues when all are there."""
        await self.record_results(session, results)
        self._worker.wake(session.id)

    async def record_results(self, session: Session, results: Sequence[Result]) -> None:
        """Record such results without waking the session, before a new input is posted."""
        for result in results:
            await self._store.record_client_result(session.id, replace(result, text=self.home.redact(result.text)))

    async def seed(self, session: Session, past: Sequence[Body]) -> bool:
        """Fill an empty session with earlier entries; False when it is not empty. An open turn in them is resumed."""
        is_seeded = await self._store.seed(session.id, [_redact_body(body, self.home.redact) for body in past])
        self._worker.wake(session.id)
        return is_seeded

    def follow(self, session: Session, after: int = 0) -> AsyncGenerator[Event, None]:
        return self._hub.follow(session.id, after)

    async def resume(self, session: Session) -> None:
        self._worker.wake(session.id)

    async def unfinished(self) -> Sequence[Session]:
        sessions = [await self._store.find(self.person, id) for id in await self._store.sessions_with_work()]
        return [session for session in sessions if session]

    async def resume_all(self) -> Sequence[Session]:
        sessions = await self.unfinished()
        await self._worker.wake_all()
        return sessions

    async def drain(self, reason: str, seconds: float = 0.0) -> None:
        """Stop running turns, for a process that is about to end. Inputs are still accepted.

        For this many seconds a reply or a call in progress may finish; then it is cancelled. Followers read to the
        present end of their session and then get `reason` as Unavailable.
        """
        await self._worker.drain(seconds)
        self._hub.close(Unavailable(reason, 1.0))

    async def wait(self, session: Session) -> TurnResult | None:
        if not session.has_work:
            return None
        self._worker.wake(session.id)
        turn: list[Entry] = []
        async with aclosing(self._hub.follow(session.id)) as stream:
            async for event in stream:
                if isinstance(event, Entry):
                    turn.append(event)
                    if isinstance(event.body, Ended):
                        if event.seq > session.head and not (await self.find(session.id)).has_work:
                            return turn_result(session.id, turn)
                        turn = []
        raise AssertionError("a stream of events has no end")

    async def stop(self, session: Session, reason: str = "stopped", *, tasks: bool = False) -> bool:
        is_stopped = await self._worker.stop(session.id, reason) is not None
        return await self._task_supervisor.kill_awaited(session.id, session.person, everything=tasks) > 0 or is_stopped

    async def tasks(self, session: Session | None = None, *, open_only: bool = False, limit: int = 1_000) -> list[Task]:
        return list(
            await self._store.list_tasks(self.person, session.id if session else "", open_only=open_only, limit=limit)
        )

    async def find_task(self, name: str) -> Task:
        if task := await self._store.find_task(self.person, name):
            return task
        raise Refused(f"there is no task {name!r}; `outrider tasks list` shows all tasks")

    async def refresh_task(self, task: Task) -> Task:
        return await self._task_supervisor.refresh(task)

    async def kill_task(self, task: Task) -> Task:
        return await self._task_supervisor.kill(task, "killed on request")

    async def wait_task(self, task: Task, seconds: float = inf) -> Task:
        return await self._task_supervisor.wait(task, seconds)

    async def questions(self, session: Session) -> Sequence[Asked]:
        return tuple(fold(await self._store.read(session.id)).questions.values())

    async def pending_questions(self) -> Sequence[PendingQuestion]:
        sessions = [session for session in await self._store.asking_sessions() if self._sees_questions_of(session)]
        return [PendingQuestion(session, asked) for session in sessions for asked in await self.questions(session)]

    def _sees_questions_of(self, session: Session) -> bool:
        return session.person == self.person or (self._can_approve and self.person == DEFAULT_PERSON)

    async def answer(self, session: Session, asked: Asked, answer: str) -> bool:
        if not self._can_approve or not self._sees_questions_of(session):
            raise Refused("only the owner of this Outrider, or a key with the scope approve, can answer this question")
        # The question as it was recorded, not as the caller has it.
        open_question = next((one for one in await self.questions(session) if one.ask == asked.ask), None)
        question = open_question or asked
        if answer not in question.choices:
            choices = ", ".join(question.choices)
            raise Refused(f"{answer!r} is not a valid answer to this question; choose one of: {choices}")
        entry = await self._store.answer(session.id, question.ask, answer, self.person)
        applies_to = {SESSION: session.id, WORKSPACE: session.workspace}.get(answer)
        if entry and open_question and applies_to:
            scope = "session" if answer == SESSION else "workspace"
            for need in question.needs:
                await self._store.add_permission(session.person, scope, applies_to, need)
        self._worker.wake(session.id)
        return entry is not None

    async def permissions(self) -> Sequence[Permission]:
        return await self._store.list_permissions(self.person)

    async def revoke_permission(self, permission_id: str) -> bool:
        return await self._store.revoke_permission(self.person, permission_id)

    async def session(self, name: str = "") -> Session:
        _check_name(name)
        if name and (session := await self._store.find(self.person, name)):
            return await self._confirm_workspace(session)
        _check_not_reserved(name)
        if self.home.workspace:
            workspace, identity = self.home.workspace, self.home.identity
        else:
            workspace = create_workspace(self.config.home, name)
            identity = find_identity(workspace)
        return await self._store.create(self.person, name, str(workspace), identity)

    async def _confirm_workspace(self, session: Session) -> Session:
        """A person who names a session in its folder means the folder that is there now."""
        identity = self.home.identity
        if identity in (None, session.identity) or str(self.home.workspace) != session.workspace:
            return session
        return await self._store.record_identity(session.id, identity, replaces=session.identity)

    async def find(self, name: str) -> Session:
        return _require_session(await self._store.find(self.person, name) if name.isprintable() else None, name)

    async def find_by_prefix(self, name: str) -> Session:
        return _require_session(await self._store.look_up(self.person, name) if name.isprintable() else None, name)

    async def sessions(self, limit: int = 100) -> Sequence[Session]:
        return await self._store.list(self.person, limit)

    async def session_settings(self, limit: int = 100) -> Mapping[str, Mapping[str, str]]:
        """The settings of the sessions that `sessions` returns, by id."""
        return await self._store.list_settings(self.person, limit)

    async def journal(self, session: Session, after: int = 0, limit: int = 0) -> Sequence[Entry]:
        return await self._store.read(session.id, after, limit)

    async def search(self, words: str, limit: int = 20) -> Sequence[SearchHit]:
        return await self._store.search(self.person, words, limit)

    async def rename(self, session: Session, name: str) -> Session:
        _check_name(name)
        _check_not_reserved(name)
        if not name:
            raise Refused("a session needs a name")
        if _FIXED_NAMES.fullmatch(session.name):
            raise Refused(f"{session.name!r} cannot be renamed: a repeated request finds this session by its name")
        return await self._store.rename(self.person, session.id, name)

    async def move(self, session: Session) -> Session:
        workspace, identity, session = self.home.workspace, self.home.identity, await self.find(session.id)
        if workspace is None or identity is None:
            raise Refused(f"there is no folder for session {session.name!r} here; name one that exists")
        if has_same_folder(session):
            raise Refused(
                f"the workspace of session {session.name!r} is {session.workspace} and cannot be changed; "
                "start a new session"
            )
        return await self._store.record_move(session.id, str(workspace), identity, replaces=session.workspace)

    async def delete(self, session: Session) -> bool:
        await self.stop(session, "the session was deleted", tasks=True)
        is_deleted = await self._store.delete(self.person, session.id)
        self._hub.fail_followers(session.id, Refused(f"the session {session.name!r} was deleted"))
        return is_deleted

    async def find_key(self, id: str) -> Key | None:
        return await self._store.find_key(id)

    async def list_keys(self) -> Sequence[Key]:
        return await self._store.list_keys()

    async def spent(self, id: str, since: int = 0) -> float:
        return await self._store.spent(id, since)

    async def create_key(self, id: str, spec: KeySpec, digest: bytes) -> Key:
        return await self._store.create_key(id, spec, digest)

    async def revoke_key(self, id: str) -> bool:
        return await self._store.revoke_key(id)

    async def health(self) -> HealthReport:
        """Check this home with a read and a write. Raises what the store raises when it fails."""
        return await check_health(self._store, self._worker)

    async def own_work(self) -> OwnWork:
        """What this person has running."""
        return await count_own_work(self._store, self._worker, self.person)

    async def change(self, session: Session, settings: Mapping[str, str]) -> None:
        check_runtime_choice(settings, self.default_runtime)
        for name, value in settings.items():
            await self._store.change(session.id, name, value)
            self._worker.wake(session.id)


def _require_session(session: Session | None, name: str) -> Session:
    if session is None:
        raise Refused(f"there is no session {name!r}; `outrider sessions list` shows all sessions")
    return session


def _redact_body(body: Body, redact: Callable[[str], str]) -> Body:
    match body:
        case Input(text=text) | Reply(text=text) | Result(text=text):
            return replace(body, text=redact(text))
        case Changed(value=value):
            return replace(body, value=redact(value))
        case _:
            return body


_FIXED_NAMES = re.compile(r"(chat|response) [0-9a-f]{32}|child t-\w+", re.ASCII)
"""Sessions of requests with an Idempotency-Key, and child sessions of tasks."""


def _check_name(name: str) -> None:
    if len(name) > 100 or not name.isprintable() or name != name.strip():
        raise Refused("a session name has at most 100 printable characters and neither starts nor ends with a space")


_RESERVED_NAMES = ("search", ".", "..")
"""Path segments with a special meaning in URLs."""


def _check_not_reserved(name: str) -> None:
    if name in _RESERVED_NAMES:
        raise Refused(f"a session cannot be named {name!r}, which has a special meaning in URLs")
