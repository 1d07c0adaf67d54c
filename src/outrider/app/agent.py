"""What every surface does with an agent: say, follow, stop, look up. The CLI stands on these calls."""

import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from math import inf
from pathlib import Path

import anyio
from msgspec import Struct
from msgspec.structs import replace

from outrider.app.addresses import PYTHON
from outrider.app.api import DEFAULT_PERSON, default_model_name, require_session
from outrider.app.health import HealthReport, check_health
from outrider.app.workspaces import create_workspace
from outrider.config.schema import Config
from outrider.core.approvals import SESSION, WORKSPACE, Permission
from outrider.core.errors import Refused, Unavailable
from outrider.core.events import Asked, Body, Changed, Ended, Entry, Event, Input, Reply, Result
from outrider.core.plan import fold
from outrider.core.ports import Commands
from outrider.core.store_port import Blobs, FullStore, Key, KeySpec, SearchHit, Session
from outrider.core.tasks import Task
from outrider.core.turn_result import TurnResult, collect_result, turn_result, until_turn_ended
from outrider.core.types import Image, ToolSpec
from outrider.engine.event_hub import EventHub
from outrider.engine.inbox import Inbox, InboxMessage
from outrider.engine.task_supervisor import TaskSupervisor
from outrider.engine.worker import Worker
from outrider.system.images import media_type


class Home(Struct, frozen=True):
    """What an agent is opened on."""

    config: Config
    store: FullStore
    blobs: Blobs
    commands: Commands
    inbox: Inbox
    notices: tuple[str, ...] = ()
    workspace: Path | None = None
    """The folder for new sessions; without one, each gets its own."""


class Agent:
    """An open Outrider home."""

    def __init__(
        self,
        home: Home,
        hub: EventHub,
        worker: Worker,
        keeper: TaskSupervisor,
        person: str = DEFAULT_PERSON,
        payer: str = "",
    ) -> None:
        self._payer = payer
        self.person = person
        """Whose sessions and tasks these calls see; another person's are as good as none."""
        self.home = home
        """What it is opened on."""
        self.config = home.config
        self.notices = home.notices
        """What the person should know about this home, e.g. that a damaged store was set aside."""
        self._workspace = home.workspace
        self._store = home.store
        self._blobs = home.blobs
        self._hub = hub
        self._worker = worker
        self._task_supervisor = keeper
        self._inbox = home.inbox
        self._redact = home.inbox.redact
        self._tasks = home.store
        self.commands = home.commands
        """The commands of tasks, as they are on disk."""

    @property
    def is_client(self) -> bool:
        """Never: whoever has an agent owns its home."""
        return False

    @property
    def default_model(self) -> str:
        """What is asked when a session names no model; empty when nothing can be."""
        return default_model_name(self.config)

    @property
    def default_runtime(self) -> str:
        """What carries the turns of sessions that ask for nothing else."""
        return self.config.runtime.name

    def owner_mismatch(self, settings: Mapping[str, str]) -> str:
        """None: whoever has an agent answers itself."""
        return ""

    async def wait_owner_changed(self) -> None:
        """Never: it owns the home as long as it is open."""
        await anyio.sleep_forever()

    def in_workspace(self, workspace: Path | None) -> "Agent":
        """The same home, with another folder for new sessions."""
        return Agent(
            replace(self.home, workspace=workspace),
            self._hub,
            self._worker,
            self._task_supervisor,
            self.person,
            self._payer,
        )

    def for_person(self, person: str, payer: str = "") -> "Agent":
        """The same home, as this person sees it. What is said then counts as the spending of this key, by its id."""
        return Agent(self.home, self._hub, self._worker, self._task_supervisor, person, payer)

    async def say(
        self,
        text: str,
        *,
        session: str = "",
        images: Sequence[bytes] = (),
        key: str | None = None,
        address: str = f"{PYTHON}:api",
        on_event: Callable[[Event], None] | None = None,
    ) -> TurnResult:
        """Say something and wait for the end of the turn that deals with it.

        An empty `session` begins a new one; a name continues the one of that name, or begins it.
        With a `key`, saying it again gives the same turn's outcome and runs nothing twice.
        """
        known = await self.session(session)
        events = self.events(text, session=known.id, images=images, key=key, address=address)
        return await collect_result(known.id, events, on_event)

    async def events(
        self,
        text: str,
        *,
        session: str = "",
        images: Sequence[bytes] = (),
        key: str | None = None,
        address: str = f"{PYTHON}:api",
    ) -> AsyncGenerator[Event, None]:
        """Say something and watch: every entry and delta from the input to the `Ended` that deals with it."""
        known = await self.session(session)
        entry = await self.post(text, session=known, images=images, key=key, address=address)
        async with aclosing(until_turn_ended(entry, self._hub.follow(known.id, entry.seq - 1))) as stream:
            async for event in stream:
                yield event

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
        """Hand in an input and return once it is durable; its turn goes on by itself.

        `tools` are the sender's own: the turn waits for the results of their calls (`supply`).
        """
        kept = [Image(self._blobs.put(content), media_type(content)) for content in images]
        given = InboxMessage(text, tuple(kept), key, address, tuple(tools), self._payer)
        entry, _ = await self._inbox.accept(session, given)
        return entry

    async def submit_results(self, session: Session, results: Sequence[Result]) -> None:
        """Give the results of calls of the sender's own tools; the turn goes on when all are there."""
        await self.record_results(session, results)
        self._worker.wake(session.id)

    async def record_results(self, session: Session, results: Sequence[Result]) -> None:
        """Record such results before a new input: the turn is not taken up until that one is there."""
        for result in results:
            await self.home.store.record_client_result(session.id, replace(result, text=self._redact(result.text)))

    async def seed(self, session: Session, past: Sequence[Body]) -> bool:
        """Begin an empty session with what was said elsewhere; False when it is not empty.

        A turn that the past leaves open goes on now.
        """
        is_seeded = await self._store.seed(session.id, [_redact_body(body, self._redact) for body in past])
        self._worker.wake(session.id)
        return is_seeded

    def follow(self, session: Session, after: int = 0) -> AsyncGenerator[Event, None]:
        """Every entry after this one and the deltas in between, for as long as it is read."""
        return self._hub.follow(session.id, after)

    async def resume(self, session: Session) -> None:
        """Go on with this session, if it has something to do, and carry it from now on."""
        self._worker.wake(session.id)

    async def unfinished(self) -> Sequence[Session]:
        """The sessions that have something to do, longest waiting first. Nothing is taken up."""
        found = [await self._store.find(self.person, id) for id in await self._store.sessions_with_work()]
        return [session for session in found if session]

    async def resume_all(self) -> Sequence[Session]:
        """Take up every session that has something to do, e.g. after a crash, and say which those are."""
        waiting = await self.unfinished()
        await self._worker.wake_all()
        return waiting

    async def drain(self, reason: str, gently: float = 0.0) -> None:
        """Carry nothing any more, for a process about to end: turns are let go of in order, inputs are still accepted.

        For so many seconds, a reply or a call in progress may come to its end; then it is cut. Whoever follows a
        session reads to its present end and is then told `reason` as Unavailable.
        """
        await self._worker.drain(gently)
        self._hub.close(Unavailable(reason, 1.0))

    async def wait(self, session: Session) -> TurnResult | None:
        """Wait until nothing is left to do in this session: the outcome of its last turn, or None if nothing was."""
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
        raise AssertionError("a follower never ends by itself")

    async def stop(self, session: Session, reason: str = "stopped by the person", *, tasks: bool = False) -> bool:
        """Stop the session's turn and the commands it waits for; with `tasks`, also those in the background.

        True when there was something to stop.
        """
        is_stopped = await self._worker.stop(session.id, reason) is not None
        return await self._task_supervisor.kill_awaited(session.id, session.person, everything=tasks) > 0 or is_stopped

    async def tasks(self, session: Session | None = None, *, open_only: bool = False, limit: int = 1_000) -> list[Task]:
        """The tasks of a session, or all of them; latest first."""
        return list(
            await self._tasks.list_tasks(self.person, session.id if session else "", open_only=open_only, limit=limit)
        )

    async def find_task(self, name: str) -> Task:
        """The task of this id. Raises Refused when there is none."""
        if found := await self._tasks.find_task(self.person, name):
            return found
        raise Refused(f"there is no task {name!r}; `outrider tasks list` shows them")

    async def kill_task(self, task: Task) -> Task:
        """End a task and all it started; it has ended when this returns."""
        return await self._task_supervisor.kill(task, "killed by the person")

    async def wait_task(self, task: Task, seconds: float = inf) -> Task:
        """Wait for a task's end, at most so long; the task as it is then."""
        return await self._task_supervisor.wait(task, seconds)

    async def questions(self, session: Session) -> Sequence[Asked]:
        """The questions this session waits to have answered."""
        return tuple(fold(await self._store.read(session.id)).questions.values())

    async def answer(self, session: Session, asked: Asked, answer: str) -> bool:
        """Answer a question: `once`, `session`, `workspace` or `no`. False when it has been answered already."""
        if answer not in asked.choices:
            raise Refused(f"{answer!r} is no answer; say one of: {', '.join(asked.choices)}")
        entry = await self._tasks.answer(session.id, asked.ask, answer, session.person)
        place = {SESSION: session.id, WORKSPACE: session.workspace}.get(answer)
        if entry and place:
            for need in asked.needs:
                await self._tasks.add_permission(
                    session.person, "session" if answer == SESSION else "workspace", place, need
                )
        self._worker.wake(session.id)
        return entry is not None

    async def permissions(self) -> Sequence[Permission]:
        """What was allowed for a whole session or workspace, and still holds."""
        return await self._tasks.list_permissions(self.person)

    async def revoke_permission(self, permission_id: str) -> bool:
        """Take a grant back."""
        return await self._tasks.revoke_permission(self.person, permission_id)

    async def session(self, name: str = "") -> Session:
        """The session of this name or id, begun now if there is none; a new one for an empty name."""
        _check_name(name)
        if name and (found := await self._store.find(self.person, name)):
            return found
        _check_not_reserved(name)
        root = self._workspace or create_workspace(self.config.home, name)
        return await self._store.create(self.person, name, str(root))

    async def find(self, name: str) -> Session:
        """The session of this name or id. Raises Refused when there is none."""
        return require_session(await self._store.find(self.person, name) if name.isprintable() else None, name)

    async def find_by_prefix(self, name: str) -> Session:
        """As `find`; six characters or more that no other id begins with will do. For people who type an id."""
        return require_session(await self._store.look_up(self.person, name) if name.isprintable() else None, name)

    async def sessions(self, limit: int = 100) -> Sequence[Session]:
        """Latest first."""
        return await self._store.list(self.person, limit)

    async def journal(self, session: Session, after: int = 0, limit: int = 0) -> Sequence[Entry]:
        return await self._store.read(session.id, after, limit)

    async def search(self, words: str, limit: int = 20) -> Sequence[SearchHit]:
        return await self._store.search(self.person, words, limit)

    async def rename(self, session: Session, name: str) -> Session:
        """Call it otherwise. Raises Taken when another session is called so, Refused when it must keep its name."""
        _check_name(name)
        _check_not_reserved(name)
        if not name:
            raise Refused("a session needs a name")
        if _FIXED_NAMES.fullmatch(session.name):
            raise Refused(f"{session.name!r} keeps its name: it is found by it when the same is asked for again")
        return await self._store.rename(self.person, session.id, name)

    async def delete(self, session: Session) -> bool:
        await self.stop(session, "the session was deleted", tasks=True)
        is_gone = await self._store.delete(self.person, session.id)
        self._hub.fail_followers(session.id, Refused(f"the session {session.name!r} was deleted"))
        return is_gone

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
        """How this home is, found out by trying. Raises what the store raises when it is not well."""
        return await check_health(self.home.store, self._worker)

    async def change(self, session: Session, settings: Mapping[str, str]) -> None:
        """Set something for this session, e.g. `{"model": "anthropic:…"}`."""
        for name, value in settings.items():
            await self._store.change(session.id, name, value)
            self._worker.wake(session.id)


def _redact_body(body: Body, redact: Callable[[str], str]) -> Body:
    match body:
        case Input(text=text) | Reply(text=text) | Result(text=text):
            return replace(body, text=redact(text))
        case Changed(value=value):
            return replace(body, value=redact(value))
        case _:
            return body


_FIXED_NAMES = re.compile(r"(chat|response) [0-9a-f]{32}|child t-\w+", re.ASCII)
"""Sessions of requests that came with an Idempotency-Key, and those that are the body of a task."""


def _check_name(name: str) -> None:
    if len(name) > 100 or not name.isprintable() or name != name.strip():
        raise Refused("a session's name has at most 100 printable characters and no space at its ends")


_RESERVED_NAMES = ("search", ".", "..")
"""What stands for something else in the place of a session's name in a URL."""


def _check_not_reserved(name: str) -> None:
    if name in _RESERVED_NAMES:
        raise Refused(f"a session cannot be called {name!r}: in a URL that means something else")
