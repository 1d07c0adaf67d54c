"""Who owns a home, and who is whose guest: whoever has the lock owns it, the others join, and one follows when it goes.

The lock is the truth, and the kernel lets go of it when its holder dies. The socket is only the way in.
"""

import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio
from anyio.abc import TaskStatus
from msgspec.structs import replace

from outrider.app.api import OpenMode
from outrider.config.schema import Config
from outrider.core.errors import HomeBusy
from outrider.ipc.client import HomeClient, OwnerWait, connect_to_owner
from outrider.ipc.protocol import model_fingerprint, owner_info, process_label
from outrider.system.lock import HomeLock, lock_home
from outrider.system.tasks import unwrap_single

DRAIN_SECONDS = 10.0
"""Seconds that a reply or a call in progress has when the owner goes and others stay."""
_REPAIR_TIMEOUT = 60.0
"""Seconds that a new owner may take, for those who were here before it: a store that must be mended takes its time."""
_SUCCESSOR_DELAY = 5.0
"""Seconds in which a home that was asked for is left to who asked for it."""
_OTHER_MODELS_DELAY = 1.5
"""Seconds for which a home is left to those who can ask what its last owner could."""
_MIN_OWNERSHIP = 0.5
"""Seconds that an owner who followed another stays for those who were guests with it."""
_HAND_OVER_REASON = "this process makes way for another, which goes on with the turn"


class HomeMember:
    """One process in a home, over all owners it sees there."""

    def __init__(self, client: HomeClient, presence: OpenMode, workspace: Path | None) -> None:
        self._client = client
        self._home = client.config.home
        self._mode = presence
        self._workspace = workspace
        self._owner_wait = OwnerWait(self._home, presence.wait)
        self._was_attached = False
        self._not_before = 0.0
        self._closing = anyio.Event()
        self._closed = anyio.Event()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Join or own, again and again, until it has left. Raises HomeBusy when neither can be."""
        while not self._closing.is_set():
            if await self._run_as_client(task_status):
                continue
            async with AsyncExitStack() as stack:
                try:
                    hold = await self._lock_home(stack)
                except HomeBusy as busy:
                    await self._owner_wait.wait_or_raise(busy)
                else:
                    await self._run_as_owner(hold, task_status)
        self._closed.set()

    async def close(self) -> None:
        """Let go in order: a guest just goes, an owner that is not alone hands over first."""
        self._closing.set()
        if not self._client.is_client:
            await self._closed.wait()

    def _mark_attached(self, task_status: TaskStatus[None]) -> None:
        self._owner_wait = OwnerWait(self._home, _REPAIR_TIMEOUT, _REPAIR_TIMEOUT)
        if not self._was_attached:
            self._was_attached = True
            task_status.started()

    async def _run_as_client(self, task_status: TaskStatus[None]) -> bool:
        """Be a guest for as long as there is an owner who answers. False when there is none."""
        async with connect_to_owner(self._home, str(self._workspace or "")) as guest:
            if guest is None:
                return False
            seat = self._client.attach(guest)
            self._mark_attached(task_status)
            try:
                heir = await guest.wait_closed()
                pause = (
                    _OTHER_MODELS_DELAY
                    if guest.info.model_fingerprint != model_fingerprint(self._client.config)
                    else 0.0
                )
                pause = {"": pause, process_label(): 0.0}.get(heir, _SUCCESSOR_DELAY)
                self._not_before = time.monotonic() + pause
            finally:
                self._client.detach(seat)
        return True

    async def _lock_home(self, stack: AsyncExitStack) -> HomeLock:
        if time.monotonic() < self._not_before:
            raise HomeBusy(f"{self._home} is being taken over")
        listens = self._mode.runs != "none"
        return await stack.enter_async_context(lock_home(self._home, self._mode.label, 0.0, listens=listens))

    async def _run_as_owner(self, hold: HomeLock, task_status: TaskStatus[None]) -> None:
        """Own the home until this process goes, or somebody else asks for it."""
        from outrider.app.open import open_agent  # all that a guest does without
        from outrider.ipc.server import OwnerServer, serve_home

        config, presence = self._client.config, replace(self._mode, lock=hold)
        async with open_agent(config=config, workspace=self._workspace, presence=presence) as agent:
            served = OwnerServer(agent, owner_info(config, presence))
            async with AsyncExitStack() as stack:
                if presence.runs != "none":
                    await stack.enter_async_context(serve_home(self._home, served))
                seat, until = self._client.attach(agent), time.monotonic() + _MIN_OWNERSHIP * self._was_attached
                try:
                    if self._was_attached and presence.runs == "all":
                        await agent.resume_all()
                    self._mark_attached(task_status)
                    await _wait_first(served.hand_over_requested, self._closing)
                    # The other guests of the last owner are on their way, and may not be able to go on alone.
                    await anyio.sleep(max(0.0, until - time.monotonic()))
                    if served.successor or served.client_count:
                        seat.is_ending = True
                        await served.drain(_HAND_OVER_REASON, DRAIN_SECONDS)
                finally:
                    self._client.detach(seat)
        self._not_before = time.monotonic() + _SUCCESSOR_DELAY


async def _wait_first(*events: anyio.Event) -> None:
    async def wait(event: anyio.Event) -> None:
        await event.wait()
        group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        for event in events:
            group.start_soon(wait, event)


@asynccontextmanager
async def open_home_client(
    config: Config, presence: OpenMode, workspace: Path | None = None
) -> AsyncGenerator[HomeClient]:
    """A home to act in: owned by this process if it is free, else as a guest of whoever owns it.

    When the owner goes, one of its guests follows. Raises HomeBusy when the home is held by a process that takes none.
    """
    joined = HomeClient(config, takes_over=presence.runs == "own")
    member = HomeMember(joined, presence, workspace)
    try:
        async with anyio.create_task_group() as group:
            await group.start(member.run)
            try:
                yield joined
            finally:
                await member.close()
            group.cancel_scope.cancel()
    except BaseExceptionGroup as several:
        raise unwrap_single(several) from several
