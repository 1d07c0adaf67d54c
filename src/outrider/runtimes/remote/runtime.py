"""Another agent as a runtime (`remote.url`): another Outrider by its sessions, anything else by chat completions.

While it is set, nothing runs here: no model is asked and no tool is called.
"""

import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Literal

import anyio
from msgspec import Struct

from outrider.core.errors import Refused
from outrider.core.events import Reply, Started
from outrider.core.ports import Turn
from outrider.core.types import REMOTE, RuntimeTraits
from outrider.runtimes.base import RuntimeContext
from outrider.runtimes.external.approvals import withdraw_stale_questions
from outrider.runtimes.remote.chat_turn import is_chat_binding, run_chat_turn
from outrider.runtimes.remote.client import RemoteClient, parse_endpoint
from outrider.runtimes.remote.errors import RemoteFailed
from outrider.runtimes.remote.notices import MAX_WATCHED, NoticeWatcher, WatchedSession
from outrider.runtimes.remote.outrider_api import FarOutrider
from outrider.runtimes.remote.session_turn import SessionTurnRun, parse_cursor, session_binding
from outrider.system.task_groups import background_group

RECHECK_SECONDS = 300.0
"""How long it is remembered what the other side is."""
ANY_MODEL = "default"
"""The model to request from a server that lists none."""
_log = logging.getLogger("outrider.remote")


class RemoteKind(Struct, frozen=True):
    """What the other side is."""

    api: Literal["sessions", "chat"]
    model: str = ""
    """The model to request; for chat completions only."""


class _ModelItem(Struct):
    id: str


class _ModelPage(Struct):
    data: list[_ModelItem]


class RemoteRuntime:
    """Forwards turns to the agent at `remote.url`."""

    traits = RuntimeTraits(REMOTE, steers=True, bounded=False, takes_client_tools=False)

    def __init__(self, context: RuntimeContext, client: RemoteClient, far: FarOutrider, watcher: NoticeWatcher) -> None:
        self._context = context
        self._client = client
        self._far = far
        self._watcher = watcher
        self._kind: RemoteKind | None = None
        self._checked = 0.0
        self._checking = anyio.Lock()

    async def started_entry(self, turn: Turn) -> Started:
        return Started(REMOTE)

    async def run(self, turn: Turn) -> None:
        try:
            kind = await self._find_kind(turn)
            if kind.api == "sessions":
                await self._run_in_session(turn)
                return
            await withdraw_stale_questions(turn)
            await run_chat_turn(turn, self._client, self._context, kind.model)
        except RemoteFailed as failed:
            self._kind = None
            # The person reads these words as the reply, and the turn counts as failed.
            raise Refused(str(failed)) from failed

    async def _run_in_session(self, turn: Turn) -> None:
        session = turn.session
        self._watcher.forget(session.id)
        run = SessionTurnRun(turn, self._far, self._context, self._client.patience)
        try:
            await run.run()
        finally:
            if run.far_session:
                self._watcher.watch(WatchedSession(session.id, session.person, run.far_session, run.cursor))

    async def _find_kind(self, turn: Turn) -> RemoteKind:
        """What the other side is, checked again after a while. A turn that runs there is continued as it began."""
        bound = session_binding(turn.state())
        if bound and parse_cursor(bound.turn).newest_input and self._context.config.remote.api != "chat":
            return RemoteKind("sessions")
        async with self._checking:
            if self._kind is None or anyio.current_time() - self._checked > RECHECK_SECONDS:
                try:
                    self._kind = await find_kind(self._client, self._context.config.remote.api, self._model)
                except RemoteFailed as failed:
                    await turn.record(Reply(str(failed), max(turn.state().newest_input, turn.state().saw)))
                    raise
                self._checked = anyio.current_time()
            return self._kind

    @property
    def _model(self) -> str:
        return self._context.config.remote.model


async def find_kind(client: RemoteClient, api: str, model: str) -> RemoteKind:
    """Find out what the other side is. Raises RemoteFailed when it cannot be reached."""
    if api == "sessions" or (api == "auto" and await FarOutrider(client).version()):
        return RemoteKind("sessions")
    return RemoteKind("chat", model or await _first_model(client))


async def list_models(client: RemoteClient) -> Sequence[str]:
    """The models that the server lists. Raises RemoteFailed."""
    return [model.id for model in (await client.request("GET", "/v1/models", _ModelPage)).data]


async def _first_model(client: RemoteClient) -> str:
    try:
        return next(iter(await list_models(client)), ANY_MODEL)
    except RemoteFailed as failed:
        if not failed.status:
            raise
        _log.info("the models of the other side are not known: %s", failed)
        return ANY_MODEL


@asynccontextmanager
async def open_runtime(context: RuntimeContext) -> AsyncGenerator[RemoteRuntime]:
    """The agent at `remote.url`, for the life of a home. Raises Refused when none is set."""
    client = RemoteClient(
        parse_endpoint(context.config), context.config.remote.patience, context.tool_environment.redact
    )
    far, redact = FarOutrider(client), context.tool_environment.redact
    watcher = NoticeWatcher(far, context.bindings, redact, context.config.remote.poll)
    try:
        for session, bound in await context.bindings.list_bound(REMOTE, MAX_WATCHED):
            cursor = parse_cursor(bound.turn)
            if not is_chat_binding(bound) and not cursor.newest_input:
                watcher.watch(WatchedSession(session.id, session.person, bound.thread, cursor.entry))
        async with background_group() as group:
            group.start_soon(watcher.run)
            yield RemoteRuntime(context, client, far, watcher)
    finally:
        with anyio.CancelScope(shield=True):
            await client.close()
