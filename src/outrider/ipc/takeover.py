"""Ownership of a home over time: the process that has the lock owns it, the others are its clients, and one takes over.

Only the lock decides who owns the home, and the kernel releases it when its holder ends. The socket is just the way to
reach the owner.
"""

import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio
from anyio.abc import TaskStatus

from outrider.app.api import OpenMode
from outrider.config.schema import Config
from outrider.core.errors import HomeBusy
from outrider.ipc.client import HomeClient, OwnerWait, connect_to_owner
from outrider.ipc.protocol import model_fingerprint, owner_info, process_label
from outrider.system.lock import HomeLock, lock_home
from outrider.system.task_groups import first_of, unwrap_errors

DRAIN_SECONDS = 10.0
"""Seconds for a reply or a call in progress when the owner leaves and clients remain."""
_REPAIR_TIMEOUT = 60.0
"""Seconds that a new owner may take to answer clients of the last one: a damaged store takes time to repair."""
_SUCCESSOR_DELAY = 5.0
"""Seconds in which only the process that asked for the home takes it."""
_OTHER_MODELS_DELAY = 1.5
"""Seconds in which only a process with the models of the last owner takes the home."""
_MIN_OWNERSHIP = 0.5
"""Seconds that an owner who took over stays, for the other clients of the last one."""
_HAND_OVER_REASON = "this process hands over the home, and another one continues the turn"


class HomeMember:
    """One process in a home, over all its owners."""

    def __init__(self, client: HomeClient, mode: OpenMode, workspace: Path | None) -> None:
        self._client = client
        self._home = client.config.home
        self._mode = mode
        self._workspace = workspace
        self._owner_wait = OwnerWait(self._home, mode.access, mode.wait)
        self._was_attached = False
        self._not_before = 0.0
        self._closing = anyio.Event()
        self._closed = anyio.Event()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Be a client or the owner, again and again, until closed. Raises HomeBusy when neither is possible."""
        while not self._closing.is_set():
            if await self._run_as_client(task_status):
                continue
            async with AsyncExitStack() as stack:
                try:
                    lock = await self._lock_home(stack)
                except HomeBusy as busy:
                    await self._owner_wait.wait_or_raise(busy)
                else:
                    await self._run_as_owner(lock, task_status)
        self._closed.set()

    async def close(self) -> None:
        """Leave the home. A client just leaves; an owner with clients hands over first."""
        self._closing.set()
        if not self._client.is_client:
            await self._closed.wait()

    def _mark_attached(self, task_status: TaskStatus[None]) -> None:
        self._owner_wait = OwnerWait(self._home, self._mode.access, _REPAIR_TIMEOUT, _REPAIR_TIMEOUT)
        if not self._was_attached:
            self._was_attached = True
            task_status.started()

    async def _run_as_client(self, task_status: TaskStatus[None]) -> bool:
        """Be a client for as long as the owner answers. False when there is no owner that serves this process."""
        async with connect_to_owner(self._home, str(self._workspace or "")) as owner:
            if owner is None or owner.info.serves not in (self._mode.access, "full"):
                return False
            owner_session = self._client.attach(owner)
            self._mark_attached(task_status)
            try:
                successor = await owner.wait_closed()
                if successor == process_label():
                    delay = 0.0
                elif successor:
                    delay = _SUCCESSOR_DELAY
                else:
                    has_same_models = owner.info.model_fingerprint == model_fingerprint(self._client.config)
                    delay = 0.0 if has_same_models else _OTHER_MODELS_DELAY
                self._not_before = time.monotonic() + delay
            finally:
                self._client.detach(owner_session)
        return True

    async def _lock_home(self, stack: AsyncExitStack) -> HomeLock:
        if time.monotonic() < self._not_before:
            raise HomeBusy(f"another process is taking over {self._home}")
        return await stack.enter_async_context(lock_home(self._home, self._mode.label, 0.0, serves=self._mode.serves))

    async def _run_as_owner(self, lock: HomeLock, task_status: TaskStatus[None]) -> None:
        """Own the home until this process leaves, or another one asks for it."""
        from outrider.app.open import open_agent  # slow to import, and a client does without
        from outrider.ipc.server import OwnerServer, serve_home

        config, mode = self._client.config, self._mode
        async with open_agent(config, lock, mode, workspace=self._workspace) as agent:
            server = OwnerServer(agent, owner_info(config, mode.label, mode.serves))
            async with serve_home(self._home, server):
                owner_session = self._client.attach(agent)
                has_taken_over = self._was_attached and mode.runs != "none"
                until = time.monotonic() + (_MIN_OWNERSHIP if has_taken_over else 0.0)
                try:
                    if self._was_attached and mode.runs == "all":
                        await agent.resume_all()
                    self._mark_attached(task_status)
                    await first_of(server.hand_over_requested.wait, self._closing.wait)
                    # Other clients of the last owner may be about to connect, and may not be able to continue alone.
                    await anyio.sleep(max(0.0, until - time.monotonic()))
                    if server.successor or server.client_count:
                        owner_session.start_hand_over()
                        await server.drain(_HAND_OVER_REASON, DRAIN_SECONDS)
                finally:
                    self._client.detach(owner_session)
        self._not_before = time.monotonic() + _SUCCESSOR_DELAY


@asynccontextmanager
async def open_home_client(config: Config, mode: OpenMode, workspace: Path | None = None) -> AsyncGenerator[HomeClient]:
    """Open a home: own it if it is free, else be a client of its owner, and take over when that one leaves.

    Raises HomeBusy when the owner does not serve this process.
    """
    client = HomeClient(config, takes_over=mode.runs == "own")
    member = HomeMember(client, mode, workspace)
    with unwrap_errors():
        async with anyio.create_task_group() as group:
            await group.start(member.run)
            try:
                yield client
            finally:
                await member.close()
            group.cancel_scope.cancel()
