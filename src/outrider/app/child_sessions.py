"""Tasks as one session sees them, and child sessions as the keeper sees them."""

from collections.abc import Callable, Sequence

import anyio.to_thread

from outrider.app.addresses import TASK
from outrider.config.environment import child_environment
from outrider.config.schema import Config
from outrider.core.errors import Refused
from outrider.core.events import Ended, Input
from outrider.core.ports import Commands, TaskTraits
from outrider.core.store_port import Session, Store
from outrider.core.tasks import Notify, Task, TaskSpec
from outrider.core.turn_result import TurnResult, turn_result
from outrider.engine.inbox import Inbox, InboxMessage
from outrider.engine.task_supervisor import TaskSupervisor
from outrider.engine.worker import Worker
from outrider.workspaces.commands import CommandSettings, LocalCommands
from outrider.workspaces.sandbox.detect import detect
from outrider.workspaces.sandbox.types import NoSandbox, SandboxLimits


class TaskPolicy:
    """What tasks may use in this home: settings, and what this machine can do."""

    def __init__(self, config: Config, commands: LocalCommands) -> None:
        self.commands = commands
        self._config = config
        self._traits: TaskTraits | None = None

    async def traits(self) -> TaskTraits:
        """Found out once: settings and the machine stay as they are while a home is open."""
        if self._traits is None:
            self._traits = await self._detect()
        return self._traits

    async def _detect(self) -> TaskTraits:
        sandbox = await anyio.to_thread.run_sync(lambda: self.commands.sandbox)
        config, refusal = self._config, ""
        if isinstance(sandbox, NoSandbox) and config.sandbox.mode == "required":
            refusal = f"no command may run here: sandbox.mode is required, and {sandbox.why}; {sandbox.hint}"
        return TaskTraits(
            timeout=config.shell.timeout,
            ceiling=config.shell.ceiling,
            has_sandbox=not isinstance(sandbox, NoSandbox),
            has_network=config.sandbox.network,
            refusal=refusal,
            depth=config.delegate.depth,
            children=config.delegate.children,
        )


def open_commands(config: Config) -> LocalCommands:
    """The commands of this home. Whether they can be sandboxed is found out when the first one is to run."""
    box, mebi = config.sandbox, 1024 * 1024
    limits = SandboxLimits(processes=box.processes, memory=box.memory * mebi, file_size=box.file * mebi)
    return LocalCommands(
        CommandSettings(
            folder=config.home / "tasks",
            detect=lambda: detect((config.home,), limits),
            environ=child_environment(),
            max_output=config.shell.output,
            network=box.network,
            read=box.read,
        )
    )


class SessionTasks:
    """The `Tasks` of one session."""

    def __init__(
        self, keeper: TaskSupervisor, wake: Callable[[str], None], policy: TaskPolicy, session: Session
    ) -> None:
        self.commands: Commands = policy.commands
        self._policy = policy
        self._task_supervisor = keeper
        self._wake = wake
        self._store = keeper.store
        self._session = session

    async def traits(self) -> TaskTraits:
        return await self._policy.traits()

    async def start(self, spec: TaskSpec) -> Task:
        task = await self._task_supervisor.start(self._session.id, spec)
        if task.child:  # begun before a crash: whoever carries this session carries its children
            self._wake(task.child)
        return task

    async def wait(self, task: Task, seconds: float) -> Task:
        return await self._task_supervisor.wait(task, seconds)

    async def detach(self, task: Task, notify: Notify) -> Task:
        return await self._task_supervisor.detach(task, notify)

    async def find(self, name: str) -> Task:
        found = await self._store.find_task(self._session.person, name) if name else None
        if found is None or found.session != self._session.id:
            raise Refused(f"this session has no task {name!r}; tasks(action=list) shows them")
        return found

    async def list(self) -> Sequence[Task]:
        return await self._store.list_tasks(self._session.person, self._session.id, limit=1_000)

    async def kill(self, task: Task) -> Task:
        await self._task_supervisor.detach(task, "never")  # the call's own result tells it
        return await self._task_supervisor.kill(task, "killed by the model")

    async def last_message(self, task: Task) -> str:
        return await self._task_supervisor.last_message(task)

    async def depth(self) -> int:
        """Counted by asking whose body this session is, and so on upwards."""
        deep, session = 0, self._session.id
        while parent := await self._store.task_of_child(session):
            deep, session = deep + 1, parent.session
        return deep


class ChildSessions:
    """Begins, reads and stops the sessions that are tasks."""

    def __init__(self, store: Store, inbox: Inbox, worker: Worker) -> None:
        self._store = store
        self._inbox = inbox
        self._worker = worker

    async def open(self, task: Task) -> str:
        """Every write is keyed by the task, so that doing this again after a crash does it once."""
        wish = task.spec
        child = await self._store.create(task.person, f"child {task.id}", task.workspace)
        settings = {"model": wish.model, "tools": ",".join(wish.tools), "steps": str(wish.steps or "")}
        if not child.head:
            for name, value in settings.items():
                if value:
                    await self._store.change(child.id, name, value)
        given = InboxMessage(
            wish.command, key=f"task/{task.id}", address=f"{TASK}:{task.id}", payer=await self._payer(task)
        )
        await self._inbox.accept(child, given)
        return child.id

    async def _payer(self, task: Task) -> str:
        """Who pays for the session that asks for this, pays for what it has done elsewhere."""
        said = [one.body for one in await self._store.read(task.session) if isinstance(one.body, Input)]
        return next((body.payer for body in reversed(said) if body.source == "person"), "")

    async def outcome(self, child: str) -> TurnResult | None:
        journal = await self._store.read(child)
        ends = [n for n, entry in enumerate(journal) if isinstance(entry.body, Ended)]
        if not ends or child in await self._store.sessions_with_work():
            return None
        start = ends[-2] + 1 if len(ends) > 1 else 0
        return turn_result(child, journal[start : ends[-1] + 1])

    async def stop(self, child: str) -> None:
        await self._worker.stop(child, "its task was ended")
