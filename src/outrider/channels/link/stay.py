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

from outrider.app.groups import only
from outrider.app.presence import Presence
from outrider.channels.link.guest import visiting
from outrider.channels.link.joined import Joined
from outrider.channels.link.waiting import Waiting, hello, means, myself
from outrider.config.load import Config
from outrider.core.errors import HomeBusy
from outrider.store.lock import Hold, hold_home

GENTLY = 10.0
"""Seconds that a reply or a call in progress has when the owner goes and others stay."""
_MENDING = 60.0
"""Seconds that a new owner may take, for those who were here before it: a store that must be mended takes its time."""
_COURTESY = 5.0
"""Seconds in which a home that was asked for is left to who asked for it."""
_HOLDING_BACK = 1.5
"""Seconds for which a home is left to those who can ask what its last owner could."""
_JOINING = 0.5
"""Seconds that an owner who followed another stays for those who were guests with it."""
_LEAVING = "this process makes way for another, which goes on with the turn"


class _Member:
    """One process in a home, over all owners it sees there."""

    def __init__(self, joined: Joined, presence: Presence, workspace: Path | None) -> None:
        self._joined = joined
        self._home = joined.config.home
        self._presence = presence
        self._workspace = workspace
        self._waiting = Waiting(self._home, presence.wait)
        self._has_been_here = False
        self._shy_until = 0.0
        self._going = anyio.Event()
        self._gone = anyio.Event()

    async def stay(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Join or own, again and again, until it has left. Raises HomeBusy when neither can be."""
        while not self._going.is_set():
            if await self._visit(task_status):
                continue
            async with AsyncExitStack() as stack:
                try:
                    hold = await self._take(stack)
                except HomeBusy as busy:
                    await self._waiting.bear(busy)
                else:
                    await self._own(hold, task_status)
        self._gone.set()

    async def leave(self) -> None:
        """Let go in order: a guest just goes, an owner that is not alone hands over first."""
        self._going.set()
        if not self._joined.is_guest:
            await self._gone.wait()

    def _sat(self, task_status: TaskStatus[None]) -> None:
        self._waiting = Waiting(self._home, _MENDING, _MENDING)
        if not self._has_been_here:
            self._has_been_here = True
            task_status.started()

    async def _visit(self, task_status: TaskStatus[None]) -> bool:
        """Be a guest for as long as there is an owner who answers. False when there is none."""
        async with visiting(self._home, str(self._workspace or "")) as guest:
            if guest is None:
                return False
            seat = self._joined.sit(guest)
            self._sat(task_status)
            try:
                heir = await guest.until_gone()
                pause = _HOLDING_BACK if guest.owner.means != means(self._joined.config) else 0.0
                pause = {"": pause, myself(): 0.0}.get(heir, _COURTESY)
                self._shy_until = time.monotonic() + pause
            finally:
                self._joined.stand(seat)
        return True

    async def _take(self, stack: AsyncExitStack) -> Hold:
        if time.monotonic() < self._shy_until:
            raise HomeBusy(f"{self._home} is being taken over")
        listens = self._presence.carries != "none"
        return await stack.enter_async_context(hold_home(self._home, self._presence.label, 0.0, listens=listens))

    async def _own(self, hold: Hold, task_status: TaskStatus[None]) -> None:
        """Own the home until this process goes, or somebody else asks for it."""
        from outrider.app.compose import open_agent  # all that a guest does without
        from outrider.channels.link.serve import Served, serving

        config, presence = self._joined.config, replace(self._presence, hold=hold)
        async with open_agent(config=config, workspace=self._workspace, presence=presence) as agent:
            served = Served(agent, hello(config, presence))
            async with AsyncExitStack() as stack:
                if presence.carries != "none":
                    await stack.enter_async_context(serving(self._home, served))
                seat, until = self._joined.sit(agent), time.monotonic() + _JOINING * self._has_been_here
                try:
                    if self._has_been_here and presence.carries == "all":
                        await agent.finish()
                    self._sat(task_status)
                    await _first(served.asked, self._going)
                    # The other guests of the last owner are on their way, and may not be able to go on alone.
                    await anyio.sleep(max(0.0, until - time.monotonic()))
                    if served.heir or served.guests:
                        seat.is_ending = True
                        await served.rest(_LEAVING, GENTLY)
                finally:
                    self._joined.stand(seat)
        self._shy_until = time.monotonic() + _COURTESY


async def _first(*events: anyio.Event) -> None:
    async def wait(event: anyio.Event) -> None:
        await event.wait()
        group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        for event in events:
            group.start_soon(wait, event)


@asynccontextmanager
async def open_joined(config: Config, presence: Presence, workspace: Path | None = None) -> AsyncGenerator[Joined]:
    """A home to act in: owned by this process if it is free, else as a guest of whoever owns it.

    When the owner goes, one of its guests follows. Raises HomeBusy when the home is held by a process that takes none.
    """
    joined = Joined(config, takes_over=presence.carries == "own")
    member = _Member(joined, presence, workspace)
    try:
        async with anyio.create_task_group() as group:
            await group.start(member.stay)
            try:
                yield joined
            finally:
                await member.leave()
            group.cancel_scope.cancel()
    except BaseExceptionGroup as several:
        raise only(several) from several
