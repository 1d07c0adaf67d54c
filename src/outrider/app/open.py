"""Opening a home: constructs store, models, tools, runtimes and worker, in the order in which their lifetimes nest."""

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import anyio
from anyio.abc import TaskGroup, TaskStatus

from outrider import plugins
from outrider.app.addresses import CHANNELS
from outrider.app.agent import Agent, Home
from outrider.app.api import OpenMode
from outrider.app.child_sessions import ChildSessions, TaskPolicy, open_commands
from outrider.app.tool_context import HomeToolEnvironment
from outrider.app.workspaces import find_identity
from outrider.config.models import choose_models
from outrider.config.redact import build_redactor
from outrider.config.schema import Config
from outrider.core.delivery import check_delivery
from outrider.core.errors import Refused
from outrider.core.events import Bound, Input
from outrider.core.plan import Bounds
from outrider.core.ports import Model, Runtime, Tool
from outrider.core.store_port import Blobs, Session
from outrider.core.types import REMOTE
from outrider.engine.approval_timeouts import ApprovalTimeouts
from outrider.engine.event_hub import EventHub
from outrider.engine.inbox import Inbox
from outrider.engine.task_services import TaskServices
from outrider.engine.task_supervisor import TaskSupervisor
from outrider.engine.worker import StalledSessions, Worker, WorkerLimits
from outrider.models.resilience import open_models
from outrider.runtimes.base import OpenRuntime, RuntimeContext
from outrider.store.sqlite import SqliteStore, open_store
from outrider.system.lock import HomeLock
from outrider.system.regex import match_lines
from outrider.system.task_groups import unwrap_errors
from outrider.tools.define import ToolFunction
from outrider.tools.define import tool as define


class _Models:
    """Models by name. Each is opened on first use and stays open until the home closes."""

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
    """Runtimes by name. Each is opened on first use, in a task of its own, and stays open until the home closes."""

    def __init__(self, context: RuntimeContext, group: TaskGroup) -> None:
        self._context = context
        self._group = group
        self._open: dict[str, Runtime] = {}
        self._opening = anyio.Lock()

    async def get(self, name: str) -> Runtime:
        async with self._opening:
            if name not in self._open:
                self._open[name] = await self._group.start(self._keep_open, name)
            return self._open[name]

    async def _keep_open(self, name: str, *, task_status: TaskStatus[Runtime]) -> None:
        open_runtime: OpenRuntime = plugins.load("runtimes", name)
        async with open_runtime(self._context) as runtime:
            task_status.started(runtime)
            await anyio.sleep_forever()


class _SessionBindings:
    """The sessions that also exist in an external runtime. Implements `SessionBindings`."""

    def __init__(self, store: SqliteStore, wake: Callable[[str], None], max_queued: int) -> None:
        self._store = store
        self._wake = wake
        self._max_queued = max_queued

    async def list_bound(self, runtime: str, limit: int) -> Sequence[tuple[Session, Bound]]:
        return await self._store.list_bound(runtime, limit)

    def can_notify(self, address: str) -> bool:
        return check_delivery(address, CHANNELS).can_deliver

    async def notice_address(self, session: str) -> str:
        newest = await self._store.find_newest_input(
            session, lambda body: body.source == "person" and self.can_notify(body.address)
        )
        return newest.address if newest else ""

    async def notify(self, session: str, notice: Input, key: str) -> None:
        await self._store.accept(session, notice, key, self._max_queued)
        self._wake(session)


class _SessionListener:
    """Reports idle sessions to the task supervisor and retries stalled ones."""

    def __init__(self, supervisor: TaskSupervisor, stalled: StalledSessions | None) -> None:
        self._supervisor = supervisor
        self._stalled = stalled

    def session_idle(self, session: str) -> None:
        if self._stalled:
            self._stalled.drop(session)
        self._supervisor.session_idle(session)

    def session_stalled(self, session: str) -> None:
        if self._stalled:
            self._stalled.add(session)


def _now() -> int:
    return time.time_ns() // 1_000_000


def _tools(extra: Sequence[Tool | ToolFunction]) -> dict[str, Tool]:
    built_in: list[Tool] = [plugins.load("tools", name) for name in plugins.names("tools")]
    tools = {tool.spec.name: tool for tool in built_in}
    for item in extra:
        tool = define(item) if callable(item) else item
        if tool.spec.name in tools:
            raise Refused(f"two tools have the name {tool.spec.name!r}")
        tools[tool.spec.name] = tool
    return tools


@asynccontextmanager
async def open_agent(
    config: Config,
    lock: HomeLock,
    mode: OpenMode,
    *,
    model: Model | None = None,
    tools: Sequence[Tool | ToolFunction] = (),
    workspace: Path | None = None,
) -> AsyncGenerator[Agent]:
    """Open a locked home and run its worker until the block ends. Turns that are open then resume at the next opening.

    `model` replaces the one that the settings choose. `workspace` is the folder of new sessions; without one, each gets
    a folder of its own.
    """
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(open_store(config.home, mode.label, mode.wait, hold=lock))
        models = _Models(config, store.blobs, stack, model)
        with unwrap_errors():
            # The runtimes outlive the turns that they run.
            async with anyio.create_task_group() as outer, anyio.create_task_group() as group:
                yield await _start(config, mode, store, models, tools, workspace, outer, group)
                group.cancel_scope.cancel()
                outer.cancel_scope.cancel()


async def _start(
    config: Config,
    mode: OpenMode,
    store: SqliteStore,
    models: _Models,
    tools: Sequence[Tool | ToolFunction],
    workspace: Path | None,
    runtime_group: TaskGroup,
    group: TaskGroup,
) -> Agent:
    """Build the loops of a home and start them in these task groups. They call each other by hints only."""
    limits, redact = config.limits, build_redactor(config).redact
    bounds = Bounds(limits.steps, limits.repeats, limits.spend)
    hub = EventHub(store)
    worker = Worker(store, hub, WorkerLimits(bounds, limits.seconds, limits.turns, config.default_runtime))
    inbox = Inbox(store, worker.wake, max_characters=limits.input, max_queued=limits.queue, redact=redact)
    commands, children = open_commands(config), ChildSessions(store, inbox, worker)
    hint = worker.wake if mode.runs == "all" else worker.notify
    services = TaskServices(
        store,
        commands,
        children,
        wake=hint,
        now=_now,
        can_deliver=lambda address: check_delivery(address, CHANNELS).can_deliver,
        match_lines=match_lines,
        redact=redact,
    )
    supervisor = TaskSupervisor(services, max_open=config.shell.tasks)
    if mode.runs != "none":
        seconds, policy = config.asks.seconds, TaskPolicy(config, commands)
        timeouts = ApprovalTimeouts(store, worker.wake, seconds, group) if seconds else None
        environment = HomeToolEnvironment(config, store, store.blobs, supervisor, policy, worker, _now, timeouts)
        bindings = _SessionBindings(store, worker.wake, limits.queue)
        context = RuntimeContext(config, models.get, _tools(tools), environment, bounds, store.blobs, bindings)
        stalled = StalledSessions(store, worker, config.home, group) if mode.runs == "all" else None
        runtimes, listener = _Runtimes(context, runtime_group), _SessionListener(supervisor, stalled)
        await group.start(worker.run, runtimes.get, listener)
        if mode.runs == "all" and config.default_runtime == REMOTE:
            with suppress(Refused):  # The turns say why it cannot be opened.
                await runtimes.get(REMOTE)  # It gets news between turns.
    await group.start(supervisor.run)
    identity = find_identity(workspace)
    home = Home(config, store, store.blobs, commands, inbox, redact, store.notices, workspace, identity)
    return Agent(home, hub, worker, supervisor)
