"""Opens a home: store, models, tools, runtime, worker, in the order their lifetimes nest."""

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio
from anyio.abc import TaskGroup, TaskStatus
from msgspec import Struct

from outrider import plugins
from outrider.app.addresses import CHANNELS
from outrider.app.agent import Agent, Home
from outrider.app.api import PYTHON_MODE, OpenMode
from outrider.app.child_sessions import ChildSessions, SessionTasks, TaskPolicy, open_commands
from outrider.app.tool_context import HomeToolEnvironment
from outrider.config.load import load
from outrider.config.models import choose_models
from outrider.config.redact import build_redactor
from outrider.config.schema import Config
from outrider.core.delivery import check_delivery
from outrider.core.errors import Refused
from outrider.core.plan import Bounds
from outrider.core.ports import Model, Runtime, Tool
from outrider.core.store_port import Blobs
from outrider.engine.approval_timeouts import ApprovalTimeouts
from outrider.engine.event_hub import EventHub
from outrider.engine.inbox import Inbox
from outrider.engine.task_services import TaskServices
from outrider.engine.task_supervisor import TaskSupervisor
from outrider.engine.worker import StalledSessions, Worker, WorkerLimits
from outrider.models.resilience import open_models
from outrider.runtimes.base import OpenRuntime, RuntimeContext
from outrider.store.sqlite import SqliteStore, open_store
from outrider.system.regex import match_lines
from outrider.system.tasks import unwrap_single
from outrider.tools.define import ToolFunction
from outrider.tools.define import tool as define
from outrider.workspaces.commands import LocalCommands
from outrider.workspaces.local import open_local


class _Models:
    """Models by name, each opened when it is first asked for and kept until the home closes."""

    def __init__(self, config: Config, blobs: Blobs, stack: AsyncExitStack, default: Model | None) -> None:
        self._config = config
        self._blobs = blobs
        self._stack = stack
        self._open: dict[str, Model] = {"": default} if default else {}
        self._opening = anyio.Lock()

    async def get(self, name: str) -> Model:
        async with self._opening:
            if name not in self._open:
                choices = choose_models(self._config, name, plugins.names("models"))
                self._open[name] = await self._stack.enter_async_context(open_models(choices, self._blobs))
            return self._open[name]


class _Runtimes:
    """Runtimes by name, each opened when it is first asked for and kept until the home closes, in a task of its own."""

    def __init__(self, context: RuntimeContext) -> None:
        self._context = context
        self._open: dict[str, Runtime] = {}
        self._opening = anyio.Lock()
        self.task_group: TaskGroup | None = None

    async def get(self, name: str) -> Runtime:
        async with self._opening:
            if name not in self._open:
                if self.task_group is None:
                    raise Refused("this home carries no turns")
                self._open[name] = await self.task_group.start(self._keep_open, name)
            return self._open[name]

    async def _keep_open(self, name: str, *, task_status: TaskStatus[Runtime]) -> None:
        opens: OpenRuntime = plugins.load("runtimes", name)
        async with opens(self._context) as runtime:
            task_status.started(runtime)
            await anyio.sleep_forever()


def _call_each(*told: Callable[[str], None]) -> Callable[[str], None]:
    def tell(session: str) -> None:
        for each in told:
            each(session)

    return tell


def _now() -> int:
    return time.time_ns() // 1_000_000


def _can_deliver_later(address: str) -> bool:
    return check_delivery(address, CHANNELS).can_deliver


def _tools(extra: Sequence[Tool | ToolFunction]) -> dict[str, Tool]:
    built_in: list[Tool] = [plugins.load("tools", name) for name in plugins.names("tools")]
    tools = {tool.spec.name: tool for tool in built_in}
    for given in extra:
        tool = define(given) if callable(given) else given
        if tool.spec.name in tools:
            raise Refused(f"there are two tools called {tool.spec.name!r}")
        tools[tool.spec.name] = tool
    return tools


def _folder(path: str | Path | None) -> Path | None:
    return Path(path).expanduser().resolve() if path else None


@asynccontextmanager
async def open_agent(
    home: str | Path | None = None,
    *,
    model: str | Model | None = None,
    tools: Sequence[Tool | ToolFunction] = (),
    workspace: str | Path | None = None,
    config: Config | None = None,
    presence: OpenMode = PYTHON_MODE,
) -> AsyncGenerator[Agent, None]:
    """Open a home and run its worker until the block is left; turns still open then are taken up at the next opening.

    `model` is a name as in `OUTRIDER_MODEL`, or a model object. `workspace` is the folder for new sessions; without one
    each gets its own. `presence` says what others are told who find the home in use, and whose turns are carried.
    """
    config = config or load(
        Path(home) if home else None, overrides={"model.name": model} if isinstance(model, str) else {}
    )
    root = _folder(workspace)
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(
            open_store(config.home, presence.label, presence.wait, hold=presence.lock)
        )
        models = _Models(config, store.blobs, stack, model if model and not isinstance(model, str) else None)
        parts = _build_services(config, store, models, _tools(tools), presence)
        home_ = Home(config, store, store.blobs, parts.commands, parts.inbox, store.notices, root)
        try:
            # The runtimes outlive the turns they carry.
            async with anyio.create_task_group() as around, anyio.create_task_group() as group:
                parts.runtimes.task_group = around
                if presence.runs != "none":
                    await group.start(parts.worker.run)
                await group.start(parts.task_supervisor.run)
                if presence.runs == "all":
                    again = StalledSessions(store, parts.worker, config.home, group)
                    parts.worker.on_stalled, parts.worker.on_idle = (
                        again.add,
                        _call_each(again.drop, parts.task_supervisor.session_idle),
                    )
                if config.asks.seconds:
                    parts.tool_environment.start_timeout = ApprovalTimeouts(
                        store, parts.worker.wake, config.asks.seconds, group
                    ).start
                yield Agent(home_, parts.hub, parts.worker, parts.task_supervisor)
                group.cancel_scope.cancel()
                around.cancel_scope.cancel()
        except BaseExceptionGroup as several:
            raise unwrap_single(several) from several


class Services(Struct, frozen=True):
    tool_environment: HomeToolEnvironment
    commands: LocalCommands
    hub: EventHub
    worker: Worker
    inbox: Inbox
    task_supervisor: TaskSupervisor
    runtimes: _Runtimes


def _build_services(
    config: Config, store: SqliteStore, models: _Models, tools: dict[str, Tool], presence: OpenMode
) -> Services:
    """The loops of one home and what they stand on, connected by hints."""
    limits, redact = config.limits, build_redactor(config).redact
    bounds = Bounds(limits.steps, limits.repeats, limits.spend)
    commands = open_commands(config)
    place = HomeToolEnvironment(config, store, store.blobs, open_local, _now)
    runtimes = _Runtimes(RuntimeContext(config, models.get, tools, place, bounds, store.blobs))
    hub = EventHub(store)
    worker = Worker(store, hub, runtimes.get, WorkerLimits(bounds, limits.seconds, limits.turns, config.runtime.name))
    door = Inbox(store, worker.wake, longest=limits.input, queue=limits.queue, redact=redact)
    hint = worker.wake if presence.runs == "all" else worker.notify
    children = ChildSessions(store, door, worker)
    keeper = TaskSupervisor(
        TaskServices(store, commands, children, hint, _now, _can_deliver_later, match_lines, redact),
        most=config.shell.tasks,
    )
    worker.on_idle = keeper.session_idle
    terms = TaskPolicy(config, commands)
    place.session_tasks = lambda session: SessionTasks(keeper, worker.wake, terms, session)
    place.has_open_tasks = keeper.has_open
    return Services(place, commands, hub, worker, door, keeper, runtimes)
