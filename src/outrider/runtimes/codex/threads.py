"""A session's thread in Codex: begun, or taken up again, and told what it has not seen."""

import logging
from collections.abc import Sequence
from typing import Any

import anyio
from msgspec import Raw, Struct

from outrider.config.schema import Config
from outrider.core.events import Bound, Delta
from outrider.core.ports import Tools, Turn
from outrider.core.prompt import Message, UserMessage
from outrider.runtimes.codex.app_server import AppServer
from outrider.runtimes.codex.errors import codex_failed, request_failed
from outrider.runtimes.codex.launch import trust
from outrider.runtimes.codex.protocol import (
    parse_configured_model,
    parse_default_model,
    parse_model,
    parse_projects,
    parse_thread_id,
)
from outrider.runtimes.codex.sandbox_policy import (
    parse_sandbox_policy,
    permission_profile,
    sandbox_policy_of,
    without_profile,
)
from outrider.runtimes.codex.tools import MCP_TOOLS_HINT, ThreadTools, ToolProvider, dynamic_tools
from outrider.runtimes.external import history
from outrider.runtimes.jsonrpc.errors import RpcError

NAME = "codex"
_OPEN_TIMEOUT = 60.0
_TRIES = 20
_PAUSE = 0.25
_DEVELOPER_INSTRUCTIONS = """\
You work for one person within Outrider, which keeps the session and shows it to them.
- What must outlive this turn (a server, a long build) you start with the tool `background`, not in your own terminal; \
you are told when it has ended. The tool `tasks` looks after such tasks, and `delegate` hands work to a child session.
- A note in [brackets] at the beginning of a message is from Outrider, not from the person."""
_NOT_SUPPORTED = {
    "auto": "this Codex takes no tools that are declared to it, so it gets ours over MCP: %s",
    "dynamic": "this Codex takes no tools of ours, so it has no tasks and cannot delegate: %s",
    "mcp": "this Codex does not tell all that its model does, so some commands that fail at once are not shown: %s",
}
"""What it means that it has not got what it calls experimental, by `codex.tools`."""
log = logging.getLogger("outrider.codex")


async def record_unstarted(turn: Turn) -> None:
    """Write down that the thread has not heard of this turn yet, so that its words are not lost if it never does."""
    bound = turn.state().threads.get(NAME)
    if bound and bound.turn and not turn.state().steps:
        await turn.record(Bound(NAME, bound.thread, saw=bound.saw))


class OpenThread(Struct, frozen=True):
    """A thread that this process has open."""

    id: str
    model: str
    is_new: bool = False
    is_resumed: bool = False
    """This process did not have it open before."""


class ThreadOptions(Struct, frozen=True):
    """On which a thread is opened."""

    config: Config
    tools: Tools
    """Those of ours that this session may use."""
    tool_provider: ToolProvider


async def open_thread(server: AppServer, turn: Turn, options: ThreadOptions) -> OpenThread:
    """The session's thread; a new one when it has none, or when Codex does not know it any more.

    Raises CodexFailed.
    """
    bound = turn.state().threads.get(NAME)
    if bound is None:
        return await _start(server, turn, options)
    if bound.thread in server.thread_models:
        return OpenThread(bound.thread, server.thread_models[bound.thread])
    params = await _params(server, turn, options.config)
    is_by_mcp = await options.tool_provider.uses_mcp(bound.thread)
    for _ in range(_TRIES):
        try:
            model = await _resume(server, bound.thread, params, options, is_by_mcp=is_by_mcp)
            return OpenThread(bound.thread, model, is_resumed=True)
        except RpcError as error:
            if "no rollout found" in error.message or "not found" in error.message:
                log.warning("Codex does not know its thread %s any more: %s", bound.thread, error.message)
                turn.emit(Delta("Codex does not know this session any more; it is begun anew there", "note"))
                return await _start(server, turn, options)
            if "active writer" not in error.message:
                raise request_failed(error, "to take the session up again") from error
        # The process that had it is about to end.
        await anyio.sleep(_PAUSE)
    raise codex_failed("another process of Codex has this session open; end that one, then say it again")


async def inject_history(server: AppServer, turn: Turn, thread: OpenThread, newest: int) -> None:
    """Tell the thread what was said and done elsewhere, once; `newest` is the last input it got. Raises RpcError."""
    messages = _unseen_history(turn, thread, newest)
    text = history.render_history(messages)
    if not text:
        return
    turn.emit(Delta("Codex is told what was said and done in this session before", "note"))
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
    await server.request("thread/inject_items", {"threadId": thread.id, "items": [item]})


def ends_unanswered(turn: Turn) -> bool:
    """Whether what the thread may know ends with words that nobody answered: did they get there?"""
    bound = turn.state().threads.get(NAME)
    every, later = turn.transcript().after(0), turn.transcript().after(bound.saw if bound else 0)
    known = every[: len(every) - len(later)]
    return bool(known) and isinstance(known[-1], UserMessage)


def _unseen_history(turn: Turn, thread: OpenThread, newest: int) -> Sequence[Message]:
    state = turn.state()
    bound = state.threads.get(NAME)
    if thread.is_new or bound is None:
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


async def _resume(
    server: AppServer, thread: str, params: dict[str, Any], options: ThreadOptions, *, is_by_mcp: bool
) -> str:
    async with options.tool_provider.tools_for_thread(options.tools, by_mcp=is_by_mcp) as lent:
        more = {"threadId": thread, "excludeTurns": True}
        answer = await _request_thread(server, "thread/resume", {**_with_tools(params, lent), **more}, options)
        server.sandbox_policies[thread] = parse_sandbox_policy(answer, sandbox_policy_of(options.config, params["cwd"]))
        return _remember_thread(server, thread, answer, lent)


async def _start(server: AppServer, turn: Turn, options: ThreadOptions) -> OpenThread:
    params = await _params(server, turn, options.config)
    how = options.tool_provider.mode
    more: dict[str, Any] = {"experimentalRawEvents": True}
    if how != "mcp":
        more["dynamicTools"] = dynamic_tools(options.tools)
    try:
        try:
            return await _begin(server, {**params, **more}, options, is_by_mcp=how == "mcp")
        except RpcError as error:
            if "dynamicTools" not in error.message and "experimental" not in error.message:
                raise
            log.warning(_NOT_SUPPORTED[how], error.message)
            return await _begin(server, params, options, is_by_mcp=how != "dynamic")
    except RpcError as error:
        raise request_failed(error, "to begin a session") from error


async def _begin(
    server: AppServer, params: dict[str, Any], options: ThreadOptions, *, is_by_mcp: bool = False
) -> OpenThread:
    async with options.tool_provider.tools_for_thread(options.tools, by_mcp=is_by_mcp) as lent:
        answer = await _request_thread(server, "thread/start", _with_tools(params, lent), options)
        thread = parse_thread_id(answer)
        if not thread:
            raise codex_failed("Codex began a session and did not say what it is called")
        server.sandbox_policies[thread] = parse_sandbox_policy(answer, sandbox_policy_of(options.config, params["cwd"]))
        if is_by_mcp:
            await options.tool_provider.remember_mcp(thread)
        model = _remember_thread(server, thread, answer, lent)
        server.default_model = server.default_model if "model" in params else model
        return OpenThread(thread, model, is_new=True)


async def _request_thread(server: AppServer, method: str, params: dict[str, Any], options: ThreadOptions) -> Raw:
    """Open a thread whose commands cannot read our home; or any, where Codex has no such thing."""
    try:
        return await server.request(method, params, _OPEN_TIMEOUT)
    except RpcError as error:
        if "permissions" not in params or "permission" not in error.message.lower():
            raise
        log.warning("this Codex cannot hide the home of Outrider from its commands: %s", error.message)
    plain = without_profile(params, sandbox_policy_of(options.config, params["cwd"]))
    return await server.request(method, plain, _OPEN_TIMEOUT)


def _with_tools(params: dict[str, Any], tools: ThreadTools) -> dict[str, Any]:
    if tools.mcp_session is None:
        return params
    instructions = f"{params['developerInstructions']}\n{MCP_TOOLS_HINT}"
    return {**params, "developerInstructions": instructions, "config": {**params["config"], **tools.config}}


def _remember_thread(server: AppServer, thread: str, answer: Raw, tools: ThreadTools) -> str:
    if tools.mcp_session:
        server.mcp_sessions[thread] = tools.mcp_session
    model = server.thread_models[thread] = parse_model(answer)
    return model


async def _params(server: AppServer, turn: Turn, config: Config) -> dict[str, Any]:
    workspace, decided, found = turn.session.workspace, frozenset[str](), None
    try:
        found = await server.request("config/read", {})
        decided = parse_projects(found)
    except RpcError as error:
        log.info("Codex does not tell its settings: %s", error)
    more = turn.state().settings.get("instructions", "")
    inside = permission_profile(config, found)
    params: dict[str, Any] = {
        "cwd": workspace,
        "approvalPolicy": sandbox_policy_of(config, workspace).approval_policy,
        "developerInstructions": f"{_DEVELOPER_INSTRUCTIONS}\n\n{more}" if more else _DEVELOPER_INSTRUCTIONS,
        **inside,
        "config": {**trust(workspace, decided), **inside["config"]},
    }
    model = configured_model(turn, config)
    return {**params, "model": model} if model else params


async def model_override(server: AppServer, turn: Turn, config: Config, thread: OpenThread) -> str:
    """The model to name for a turn: the one that is wanted, or Codex's own where the thread asks another by now."""
    if wanted := configured_model(turn, config):
        return wanted
    try:
        server.default_model = server.default_model or parse_configured_model(await server.request("config/read", {}))
        server.default_model = server.default_model or parse_default_model(await server.request("model/list", {}))
    except RpcError as error:
        log.info("Codex does not say which model it asks by itself: %s", error)
    return server.default_model if thread.model != server.default_model else ""


def configured_model(turn: Turn, config: Config) -> str:
    """The model this session asks for, or this home; empty for what Codex's own settings say."""
    return turn.state().settings.get("codex.model") or config.codex.model
