"""A session's thread in Codex: begun, or taken up again, and told what it has not seen."""

import logging
from collections.abc import Sequence
from typing import Any

import anyio
from msgspec import Raw, Struct

from outrider.config.load import Config
from outrider.core.events import Bound, Delta
from outrider.core.ports import Tools, Turn
from outrider.core.prompt import Message, UserMessage
from outrider.runtimes.codex.faults import of_rpc, told
from outrider.runtimes.codex.fence import fence_of, parse_fence, profile, without_profile
from outrider.runtimes.codex.launch import trust
from outrider.runtimes.codex.lending import FOUND, Lending, Lent
from outrider.runtimes.codex.process import Server
from outrider.runtimes.codex.tools import declared
from outrider.runtimes.codex.wire import (
    parse_default_model,
    parse_model,
    parse_projects,
    parse_set_model,
    parse_thread_id,
)
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
_REFUSED = {
    "auto": "this Codex takes no tools that are declared to it, so it gets ours over MCP: %s",
    "dynamic": "this Codex takes no tools of ours, so it has no tasks and cannot delegate: %s",
    "mcp": "this Codex does not tell all that its model does, so some commands that fail at once are not shown: %s",
}
"""What it means that it has not got what it calls experimental, by `codex.tools`."""
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


class Terms(Struct, frozen=True):
    """On which a thread is opened."""

    config: Config
    tools: Tools
    """Those of ours that this session may use."""
    lending: Lending


async def open_thread(server: Server, turn: Turn, terms: Terms) -> Opened:
    """The session's thread; a new one when it has none, or when Codex does not know it any more.

    Raises CodexFailed.
    """
    bound = turn.state().threads.get(NAME)
    if bound is None:
        return await _start(server, turn, terms)
    if bound.thread in server.loaded:
        return Opened(bound.thread, server.loaded[bound.thread])
    params = await _params(server, turn, terms.config)
    is_by_mcp = await terms.lending.was_by_mcp(bound.thread)
    for _ in range(_TRIES):
        try:
            model = await _resume(server, bound.thread, params, terms, is_by_mcp=is_by_mcp)
            return Opened(bound.thread, model, is_taken_up=True)
        except RpcError as error:
            if "no rollout found" in error.message or "not found" in error.message:
                log.warning("Codex does not know its thread %s any more: %s", bound.thread, error.message)
                turn.emit(Delta("Codex does not know this session any more; it is begun anew there", "note"))
                return await _start(server, turn, terms)
            if "active writer" not in error.message:
                raise of_rpc(error, "to take the session up again") from error
        # The process that had it is about to end.
        await anyio.sleep(_PAUSE)
    raise told("another process of Codex has this session open; end that one, then say it again")


async def tell_past(server: Server, turn: Turn, opened: Opened, newest: int) -> None:
    """Tell the thread what was said and done elsewhere, once; `newest` is the last input it got. Raises RpcError."""
    messages = _not_known(turn, opened, newest)
    text = past.told(messages)
    if not text:
        return
    turn.emit(Delta("Codex is told what was said and done in this session before", "note"))
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
    await server.request("thread/inject_items", {"threadId": opened.id, "items": [item]})


def has_unanswered(turn: Turn) -> bool:
    """Whether what the thread may know ends with words that nobody answered: did they get there?"""
    bound = turn.state().threads.get(NAME)
    every, later = turn.transcript().after(0), turn.transcript().after(bound.saw if bound else 0)
    known = every[: len(every) - len(later)]
    return bool(known) and isinstance(known[-1], UserMessage)


def _not_known(turn: Turn, opened: Opened, newest: int) -> Sequence[Message]:
    state = turn.state()
    bound = state.threads.get(NAME)
    if opened.is_new or bound is None:
        return turn.transcript().after(0)
    if state.steps:
        # What this turn holds already was done by the thread itself.
        return ()
    every, later = turn.transcript().after(0), turn.transcript().after(bound.saw)
    first, got = len(every) - len(later), len(every) - len(turn.transcript().after(newest))
    while first > got and not bound.turn and isinstance(every[first - 1], UserMessage):
        # What was said last never got there: Codex could not be started, say.
        first -= 1
    return every[first:]


async def _resume(server: Server, thread: str, params: dict[str, Any], terms: Terms, *, is_by_mcp: bool) -> str:
    async with terms.lending.lent(terms.tools, by_mcp=is_by_mcp) as lent:
        more = {"threadId": thread, "excludeTurns": True}
        answer = await _asked(server, "thread/resume", {**_with(params, lent), **more}, terms)
        server.fences[thread] = parse_fence(answer, fence_of(terms.config, params["cwd"]))
        return _loaded(server, thread, answer, lent)


async def _start(server: Server, turn: Turn, terms: Terms) -> Opened:
    params = await _params(server, turn, terms.config)
    how = terms.lending.how
    more: dict[str, Any] = {"experimentalRawEvents": True}
    if how != "mcp":
        more["dynamicTools"] = declared(terms.tools)
    try:
        try:
            return await _begin(server, {**params, **more}, terms, is_by_mcp=how == "mcp")
        except RpcError as error:
            if "dynamicTools" not in error.message and "experimental" not in error.message:
                raise
            log.warning(_REFUSED[how], error.message)
            return await _begin(server, params, terms, is_by_mcp=how != "dynamic")
    except RpcError as error:
        raise of_rpc(error, "to begin a session") from error


async def _begin(server: Server, params: dict[str, Any], terms: Terms, *, is_by_mcp: bool = False) -> Opened:
    async with terms.lending.lent(terms.tools, by_mcp=is_by_mcp) as lent:
        answer = await _asked(server, "thread/start", _with(params, lent), terms)
        thread = parse_thread_id(answer)
        if not thread:
            raise told("Codex began a session and did not say what it is called")
        server.fences[thread] = parse_fence(answer, fence_of(terms.config, params["cwd"]))
        if is_by_mcp:
            await terms.lending.keep(thread)
        model = _loaded(server, thread, answer, lent)
        server.model = server.model if "model" in params else model
        return Opened(thread, model, is_new=True)


async def _asked(server: Server, method: str, params: dict[str, Any], terms: Terms) -> Raw:
    """Open a thread whose commands cannot read our home; or any, where Codex has no such thing."""
    try:
        return await server.request(method, params, _PATIENCE)
    except RpcError as error:
        if "permissions" not in params or "permission" not in error.message.lower():
            raise
        log.warning("this Codex cannot hide the home of Outrider from its commands: %s", error.message)
    plain = without_profile(params, fence_of(terms.config, params["cwd"]))
    return await server.request(method, plain, _PATIENCE)


def _with(params: dict[str, Any], lent: Lent) -> dict[str, Any]:
    if lent.guest is None:
        return params
    instructions = f"{params['developerInstructions']}\n{FOUND}"
    return {**params, "developerInstructions": instructions, "config": {**params["config"], **lent.config}}


def _loaded(server: Server, thread: str, answer: Raw, lent: Lent) -> str:
    if lent.guest:
        server.guests[thread] = lent.guest
    model = server.loaded[thread] = parse_model(answer)
    return model


async def _params(server: Server, turn: Turn, config: Config) -> dict[str, Any]:
    workspace, decided, found = turn.session.workspace, frozenset[str](), None
    try:
        found = await server.request("config/read", {})
        decided = parse_projects(found)
    except RpcError as error:
        log.info("Codex does not tell its settings: %s", error)
    more = turn.state().settings.get("instructions", "")
    inside = profile(config, found)
    params: dict[str, Any] = {
        "cwd": workspace,
        "approvalPolicy": fence_of(config, workspace).policy,
        "developerInstructions": f"{_WHO}\n\n{more}" if more else _WHO,
        **inside,
        "config": {**trust(workspace, decided), **inside["config"]},
    }
    model = wanted_model(turn, config)
    return {**params, "model": model} if model else params


async def model_to_name(server: Server, turn: Turn, config: Config, opened: Opened) -> str:
    """The model to name for a turn: the one that is wanted, or Codex's own where the thread asks another by now."""
    if wanted := wanted_model(turn, config):
        return wanted
    try:
        server.model = server.model or parse_set_model(await server.request("config/read", {}))
        server.model = server.model or parse_default_model(await server.request("model/list", {}))
    except RpcError as error:
        log.info("Codex does not say which model it asks by itself: %s", error)
    return server.model if opened.model != server.model else ""


def wanted_model(turn: Turn, config: Config) -> str:
    """The model this session asks for, or this home; empty for what Codex's own settings say."""
    return turn.state().settings.get("codex.model") or config.codex.model
