"""A session's thread in Codex: begun, or taken up again, and told what it has not seen."""

import logging
from collections.abc import Sequence
from typing import Any

import anyio
from msgspec import Raw, Struct

from outrider.config.load import Config
from outrider.core.events import Bound, Delta
from outrider.core.ports import Tools, Turn
from outrider.core.prompt import FromPerson, Message
from outrider.runtimes.codex.faults import of_rpc, told
from outrider.runtimes.codex.launch import trust
from outrider.runtimes.codex.process import Server
from outrider.runtimes.codex.tools import offered
from outrider.runtimes.codex.wire import parse_model, parse_projects, parse_thread_id
from outrider.runtimes.jsonrpc import RpcError
from outrider.runtimes.outside import past

NAME = "codex"
_PATIENCE = 60.0
_TRIES = 20
_PAUSE = 0.25
_WHO = """\
You work for one person within Outrider, which keeps the session and shows it to them.
- What must outlive this turn (a server, a long build) you start with the tool `background`, not in your own terminal; \
you are told when it has ended. The tool `tasks` looks after such tasks, and `delegate` hands work to a child session.
- A note in [brackets] at the beginning of a message is from Outrider, not from the person."""
log = logging.getLogger("outrider.codex")


async def approach(turn: Turn) -> None:
    """Write down that the thread has not heard of this turn yet, so that its words are not lost if it never does."""
    bound = turn.state().threads.get(NAME)
    if bound and bound.turn and not turn.state().steps:
        await turn.record(Bound(NAME, bound.thread, saw=bound.saw))


class Opened(Struct, frozen=True):
    """A thread that this process has open."""

    id: str
    model: str
    is_new: bool = False
    is_taken_up: bool = False
    """This process did not have it open before."""


async def open_thread(server: Server, turn: Turn, config: Config, tools: Tools) -> Opened:
    """The session's thread; a new one when it has none, or when Codex does not know it any more.

    Raises CodexFailed.
    """
    bound = turn.state().threads.get(NAME)
    if bound is None:
        return await _start(server, turn, config, tools)
    if bound.thread in server.loaded:
        return Opened(bound.thread, server.loaded[bound.thread])
    params = {
        **await _params(server, turn, config),
        "threadId": bound.thread,
        "excludeTurns": True,
    }
    for _ in range(_TRIES):
        try:
            answer = await server.request("thread/resume", params, _PATIENCE)
            model = server.loaded[bound.thread] = parse_model(answer)
            return Opened(bound.thread, model, is_taken_up=True)
        except RpcError as error:
            if "no rollout found" in error.message or "not found" in error.message:
                log.warning("Codex does not know its thread %s any more: %s", bound.thread, error.message)
                turn.emit(Delta("Codex does not know this session any more; it is begun anew there", "note"))
                return await _start(server, turn, config, tools)
            if "active writer" not in error.message:
                raise of_rpc(error, "to take the session up again") from error
        # The process that had it is about to end.
        await anyio.sleep(_PAUSE)
    raise told("another process of Codex has this session open; end that one, then say it again")


async def tell_past(server: Server, turn: Turn, opened: Opened) -> None:
    """Tell the thread what was said and done elsewhere, once. Raises RpcError."""
    messages = _not_known(turn, opened)
    text = past.told(messages)
    if not text:
        return
    turn.emit(Delta("Codex is told what was said and done in this session before", "note"))
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
    await server.request("thread/inject_items", {"threadId": opened.id, "items": [item]})


def _not_known(turn: Turn, opened: Opened) -> Sequence[Message]:
    state = turn.state()
    bound = state.threads.get(NAME)
    if opened.is_new or bound is None:
        return turn.transcript().after(0)
    if state.steps:
        # What this turn holds already was done by the thread itself.
        return ()
    every, later = turn.transcript().after(0), turn.transcript().after(bound.saw)
    first = len(every) - len(later)
    while first and not bound.turn and isinstance(every[first - 1], FromPerson):
        # What was said last never got there: Codex could not be started, say.
        first -= 1
    return every[first:]


async def _start(server: Server, turn: Turn, config: Config, tools: Tools) -> Opened:
    params = await _params(server, turn, config)
    more = {"dynamicTools": offered(tools), "experimentalRawEvents": True}
    try:
        answer = await _started(server, {**params, **more}, params)
    except RpcError as error:
        raise of_rpc(error, "to begin a session") from error
    thread = parse_thread_id(answer)
    if not thread:
        raise told("Codex began a session and did not say what it is called")
    model = server.loaded[thread] = parse_model(answer)
    return Opened(thread, model, is_new=True)


async def _started(server: Server, params: dict[str, Any], without: dict[str, Any]) -> Raw:
    try:
        return await server.request("thread/start", params, _PATIENCE)
    except RpcError as error:
        if "dynamicTools" not in error.message and "experimental" not in error.message:
            raise
        log.warning("this Codex takes no tools of ours, so it has no tasks and cannot delegate: %s", error.message)
        return await server.request("thread/start", without, _PATIENCE)


async def _params(server: Server, turn: Turn, config: Config) -> dict[str, Any]:
    settings = config.codex
    try:
        decided = parse_projects(await server.request("config/read", {}))
    except RpcError as error:
        log.info("Codex does not tell its settings: %s", error)
        decided = frozenset[str]()
    more = turn.state().settings.get("instructions", "")
    params: dict[str, Any] = {
        "cwd": turn.session.workspace,
        "approvalPolicy": settings.approval,
        "sandbox": settings.sandbox,
        "developerInstructions": f"{_WHO}\n\n{more}" if more else _WHO,
        "config": trust(turn.session.workspace, decided),
    }
    model = wanted_model(turn, config)
    return {**params, "model": model} if model else params


def wanted_model(turn: Turn, config: Config) -> str:
    """The model this session asks for, or this home; empty for what Codex's own settings say."""
    return turn.state().settings.get("codex.model") or config.codex.model
