"""The tasks of one session, and child sessions: sessions that are tasks of another session."""

from collections.abc import Sequence

import anyio.to_thread

from outrider.app.addresses import TASK
from outrider.config.environment import child_environment
from outrider.config.redact import build_redactor
from outrider.config.schema import Config
from outrider.core.errors import Refused
from outrider.core.events import Ended
from outrider.core.ports import Commands, TaskTraits
from outrider.core.store_port import Session, Store, TaskStore
from outrider.core.tasks import Notify, Task, TaskSpec
from outrider.core.turn_result import TurnResult, last_turn, turn_result
from outrider.engine.inbox import Inbox, InboxMessage
from outrider.engine.task_supervisor import TaskSupervisor
from outrider.engine.worker import Worker
from outrider.workspaces.command_usage import UsageLimits
from outrider.workspaces.commands import CommandSettings, LocalCommands
from outrider.workspaces.program_files import program_folders
from outrider.workspaces.sandbox.detect import detect
from outrider.workspaces.sandbox.types import NoSandbox, SandboxLimits


class TaskPolicy:
    """What tasks may use: the settings of the home, and what this machine supports."""

    def __init__(self, config: Config, commands: LocalCommands) -> None:
        self.commands = commands
        self._config = config
        self._traits: TaskTraits | None = None

    async def traits(self) -> TaskTraits:
        """Detected once: settings and machine do not change while a home is open."""
        if self._traits is None:
            self._traits = await self._detect()
        return self._traits

    async def _detect(self) -> TaskTraits:
        sandbox = await anyio.to_thread.run_sync(lambda: self.commands.sandbox)
        config, refusal = self._config, ""
        is_off = not isinstance(sandbox, NoSandbox) and sandbox.kind == "off"
        if isinstance(sandbox, NoSandbox) and config.sandbox.mode != "auto":
            refusal = f"commands are disabled: sandbox.mode is {config.sandbox.mode}, and {sandbox.why}; {sandbox.hint}"
        return TaskTraits(
            timeout=config.shell.timeout,
            ceiling=config.shell.ceiling,
            has_sandbox=not isinstance(sandbox, NoSandbox),
            has_network=config.sandbox.network or is_off,
            is_unconfined=is_off,
            refusal=refusal,
            depth=config.delegate.depth,
            children=config.delegate.children,
        )


def open_commands(config: Config) -> LocalCommands:
    """The commands of this home. The sandbox is detected when the first command runs."""
    box, mebi = config.sandbox, 1024 * 1024
    limits = SandboxLimits(
        processes=box.processes,
        memory=box.memory * mebi,
        cpu=min(box.cpu, SandboxLimits().cpu),
        file_size=box.file * mebi,
    )
    return LocalCommands(
        CommandSettings(
            folder=config.home / "tasks",
            detect=lambda: detect(limits, mode="auto" if box.mode == "required" else box.mode),
            environ=child_environment(),
            max_output=config.shell.output,
            network=box.network,
            read=box.read,
            hidden=(str(config.home),),
            program=program_folders(),
            usage=UsageLimits(cpu=box.cpu, reserve=box.reserve * mebi),
            redactor=build_redactor(config),
        )
    )


class SessionTasks:
    def __init__(
        self,
        store: TaskStore,
        supervisor: TaskSupervisor,
        worker: Worker,
        policy: TaskPolicy,
        session: Session,
    ) -> None:
        self.commands: Commands = policy.commands
        self._store = store
        self._task_supervisor = supervisor
        self._worker = worker
        self._policy = policy
        self._session = session

    async def traits(self) -> TaskTraits:
        return await self._policy.traits()

    async def start(self, spec: TaskSpec) -> Task:
        task = await self._task_supervisor.start(self._session.id, spec)
        if task.child:  # started before a crash: the process that runs this session runs its children
            self._worker.wake(task.child)
        return task

    async def wait(self, task: Task, seconds: float) -> Task:
        if task.spec.kind == "command":
            return await self._task_supervisor.wait(task, seconds)
        # The child needs a slot, and all of them may be taken by turns that wait for their children.
        async with self._worker.lend_slot(self._session.id):
            return await self._task_supervisor.wait(task, seconds)

    async def detach(self, task: Task, notify: Notify) -> Task:
        return await self._task_supervisor.detach(task, notify)

    async def find(self, name: str) -> Task:
        task = await self._store.find_task(self._session.person, name) if name else None
        if task is None or task.session != self._session.id:
            raise Refused(f"this session has no task {name!r}; tasks(action=list) shows its tasks")
        return task

    async def list(self) -> Sequence[Task]:
        return await self._store.list_tasks(self._session.person, self._session.id, limit=1_000)

    async def refresh(self, task: Task) -> Task:
        return await self._task_supervisor.refresh(task)

    async def kill(self, task: Task) -> Task:
        # The result of the call reports the end, so there is no notice.
        return await self._task_supervisor.kill(task, "killed by the model", notify="never")

    async def last_message(self, task: Task) -> str:
        return await self._task_supervisor.last_message(task)

    async def depth(self) -> int:
        """How many parents this session has."""
        depth, session = 0, self._session.id
        while parent := await self._store.task_of_child(session):
            depth, session = depth + 1, parent.session
        return depth


class ChildSessions:
    """Creates, reads and stops child sessions."""

    def __init__(self, store: Store, inbox: Inbox, worker: Worker) -> None:
        self._store = store
        self._inbox = inbox
        self._worker = worker

    async def open(self, task: Task) -> str:
        """Every write is keyed by the task, so repeating this after a crash changes nothing."""
        spec = task.spec
        child = await self._store.create(task.person, f"child {task.id}", task.workspace, task.identity)
        settings = {"model": spec.model, "tools": ",".join(spec.tools), "steps": str(spec.steps or "")}
        if not child.head:
            for name, value in settings.items():
                if value:
                    await self._store.change(child.id, name, value)
        address, payer = f"{TASK}:{task.id}", await self._payer(task)
        await self._inbox.accept(child, InboxMessage(spec.command, key=f"task/{task.id}", address=address, payer=payer))
        return child.id

    async def _payer(self, task: Task) -> str:
        """The key that pays for the parent session pays for its children."""
        newest = await self._store.find_newest_input(task.session, lambda body: body.source == "person")
        return newest.payer if newest else ""

    async def outcome(self, child: str) -> TurnResult | None:
        journal = await self._store.read(child)
        ends = [n for n, entry in enumerate(journal) if isinstance(entry.body, Ended)]
        if not ends or child in await self._store.sessions_with_work():
            return None
        return turn_result(child, last_turn(journal[: ends[-1] + 1]))

    async def stop(self, child: str) -> None:
        await self._worker.stop(child, "its task was killed")
