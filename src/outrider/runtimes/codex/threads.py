"""Threads of Codex: starts or resumes the thread of a session, and injects the history that it has not seen."""

import logging
from collections.abc import Sequence
from typing import Any

import anyio
from msgspec import Raw, Struct

from outrider.config.schema import Config
from outrider.core.events import Bound, Delta
from outrider.core.ports import Tools, Turn
from outrider.core.prompt import Message, UserMessage
from outrider.runtimes.codex.app_server import AppServer, LoadedThread
from outrider.runtimes.codex.errors import codex_failed, request_failed
from outrider.runtimes.codex.launch import trust
from outrider.runtimes.codex.protocol import parse_model, parse_projects, parse_thread_id
from outrider.runtimes.codex.sandbox_policy import (
    parse_sandbox_policy,
    permission_profile,
    sandbox_policy_of,
    without_profile,
)
from outrider.runtimes.codex.tools import (
    MCP_TOOLS_HINT,
    TaskOutputs,
    ThreadTools,
    ToolProvider,
    dynamic_tools,
)
from outrider.runtimes.external.history import LoadImage, render_history
from outrider.runtimes.external.images import data_url
from outrider.runtimes.jsonrpc.errors import RpcError

NAME = "codex"
_OPEN_TIMEOUT = 60.0
_RESUME_TRIES = 20
_RESUME_PAUSE = 0.25
_DEVELOPER_INSTRUCTIONS = """\
You work for one person within Outrider, which keeps the session and shows it to them.
- Start what must outlive this turn (a server, a long build) with the tool `background`, not in your own terminal; \
you are notified when it has ended. The tool `tasks` manages such tasks, and `delegate` hands work to a child session.
- A note in [brackets] at the beginning of a message is from Outrider, not from the person."""
_NOT_SUPPORTED = {
    "auto": "this Codex does not support dynamic tools, so it gets Outrider's tools over MCP: %s",
    "dynamic": "this Codex does not support dynamic tools, so it has no tasks and cannot delegate: %s",
    "mcp": "this Codex does not send raw items, so some commands that fail at once are not shown: %s",
}
"""The consequence of a missing experimental feature, by `codex.tools`."""
log = logging.getLogger("outrider.codex")


async def record_unstarted(turn: Turn) -> None:
    """Record that the thread has not started this turn yet, so that its input is not lost if it never does."""
    bound = turn.state().threads.get(NAME)
    if bound and bound.turn and not turn.state().steps:
        await turn.record(Bound(NAME, bound.thread, saw=bound.saw))


class OpenThread(Struct, frozen=True):
    """The thread of a session, open in an app-server."""

    id: str
    model: str
    is_new: bool = False
    is_resumed: bool = False
    """This process did not have it open before."""


class ThreadOptions(Struct, frozen=True):
    config: Config
    tools: Tools
    """Outrider's tools that this session may use."""
    tool_provider: ToolProvider


class HistoryParts(Struct, frozen=True):
    """What the history for Codex is made of besides its messages."""

    load_image: LoadImage
    task_outputs: TaskOutputs


async def open_thread(server: AppServer, turn: Turn, options: ThreadOptions) -> OpenThread:
    """The session's thread; a new one when it has none, or when Codex has lost it. Raises CodexFailed."""
    bound = turn.state().threads.get(NAME)
    if bound is None:
        return await _start(server, turn, options)
    if thread := server.thread(bound.thread):
        return OpenThread(thread.id, thread.model)
    params = await _params(server, turn, options.config)
    uses_mcp = await options.tool_provider.uses_mcp(bound.thread)
    for _ in range(_RESUME_TRIES):
        try:
            more = {"threadId": bound.thread, "excludeTurns": True}
            thread = await _load(server, "thread/resume", {**params, **more}, options, uses_mcp=uses_mcp)
            return OpenThread(thread.id, thread.model, is_resumed=True)
        except RpcError as error:
            if "no rollout found" in error.message or "not found" in error.message:
                log.warning("Codex has lost its thread %s: %s", bound.thread, error.message)
                turn.emit(Delta("Codex has lost its thread of this session; a new one starts", "note"))
                return await _start(server, turn, options)
            if "active writer" not in error.message:
                raise request_failed(error, "to resume the session") from error
        # The process that has it open is about to end.
        await anyio.sleep(_RESUME_PAUSE)
    raise codex_failed("another Codex process has this session open; end it, then send your message again")


async def inject_history(server: AppServer, turn: Turn, thread: OpenThread, newest: int, parts: HistoryParts) -> None:
    """Give the thread what was said and done elsewhere, once; `newest` is the last input it got. Raises RpcError."""
    history = render_history(_unseen_history(turn, thread, newest), parts.load_image)
    if not history.text:
        return
    turn.emit(Delta("Codex receives what was said and done in this session before", "note"))
    content = [{"type": "input_text", "text": parts.task_outputs.rename(history.text)}]
    content += [{"type": "input_image", "image_url": data_url(image.media, image.content)} for image in history.images]
    item = {"type": "message", "role": "user", "content": content}
    await server.request("thread/inject_items", {"threadId": thread.id, "items": [item]})


def ends_unanswered(turn: Turn) -> bool:
    """Whether the part of the session that the thread may know ends with an unanswered message."""
    bound = turn.state().threads.get(NAME)
    every, later = turn.transcript().after(0), turn.transcript().after(bound.saw if bound else 0)
    earlier = every[: len(every) - len(later)]
    return bool(earlier) and isinstance(earlier[-1], UserMessage)


def _unseen_history(turn: Turn, thread: OpenThread, newest: int) -> Sequence[Message]:
    state = turn.state()
    bound = state.threads.get(NAME)
    if thread.is_new or bound is None:
        return turn.transcript().after(0)
    if state.steps:
        # The thread itself did what is in this turn so far.
        return ()
    every, later = turn.transcript().after(0), turn.transcript().after(bound.saw)
    first, received = len(every) - len(later), len(every) - len(turn.transcript().after(newest))
    while first > received and not bound.turn and isinstance(every[first - 1], UserMessage):
        # The last message never reached Codex, for example because it could not be started.
        first -= 1
    return every[first:]


async def _start(server: AppServer, turn: Turn, options: ThreadOptions) -> OpenThread:
    params = await _params(server, turn, options.config)
    mode = options.tool_provider.mode
    experimental: dict[str, Any] = {"experimentalRawEvents": True}
    if mode != "mcp":
        experimental["dynamicTools"] = dynamic_tools(options.tools)
    try:
        try:
            thread = await _load(server, "thread/start", {**params, **experimental}, options, uses_mcp=mode == "mcp")
        except RpcError as error:
            if "dynamicTools" not in error.message and "experimental" not in error.message:
                raise
            log.warning(_NOT_SUPPORTED[mode], error.message)
            thread = await _load(server, "thread/start", params, options, uses_mcp=mode != "dynamic")
    except RpcError as error:
        raise request_failed(error, "to start a session") from error
    if "model" not in params:
        server.set_default_model(turn.session.workspace, thread.model)
    return OpenThread(thread.id, thread.model, is_new=True)


async def _load(
    server: AppServer, method: str, params: dict[str, Any], options: ThreadOptions, *, uses_mcp: bool
) -> LoadedThread:
    """Start or resume a thread with our tools, and register it."""
    provider = options.tool_provider
    async with provider.tools_for_thread(options.tools, uses_mcp=uses_mcp) as tools:
        requested = sandbox_policy_of(options.config, params["cwd"])
        answer = await _request_thread(server, method, _with_tools(params, tools), options.config)
        thread_id = params.get("threadId") or parse_thread_id(answer)
        if not thread_id:
            raise codex_failed("Codex started a session and did not return its id")
        if uses_mcp and method == "thread/start":
            await provider.remember_mcp(thread_id)
        policy = parse_sandbox_policy(answer, requested)
        thread = LoadedThread(thread_id, parse_model(answer), policy, tools.mcp_session)
        await server.register_thread(thread)
        return thread


async def _request_thread(server: AppServer, method: str, params: dict[str, Any], config: Config) -> Raw:
    """Open a thread whose commands cannot read Outrider's home, or any thread where Codex cannot do that."""
    try:
        return await server.request(method, params, _OPEN_TIMEOUT)
    except RpcError as error:
        if "permissions" not in params or "permission" not in error.message.lower():
            raise
        log.warning("this Codex cannot hide the home of Outrider from its commands: %s", error.message)
    plain = without_profile(params, sandbox_policy_of(config, params["cwd"]))
    return await server.request(method, plain, _OPEN_TIMEOUT)


def _with_tools(params: dict[str, Any], tools: ThreadTools) -> dict[str, Any]:
    if tools.mcp_session is None:
        return params
    instructions = f"{params['developerInstructions']}\n{MCP_TOOLS_HINT}"
    return {**params, "developerInstructions": instructions, "config": {**params["config"], **tools.config}}


async def _params(server: AppServer, turn: Turn, config: Config) -> dict[str, Any]:
    workspace, projects, settings = turn.session.workspace, frozenset[str](), None
    try:
        settings = await server.request("config/read", {"cwd": workspace})
        projects = parse_projects(settings)
    except RpcError as error:
        log.info("Codex does not return its settings: %s", error)
    instructions = turn.state().settings.get("instructions", "")
    sandbox = permission_profile(config, settings)
    params: dict[str, Any] = {
        "cwd": workspace,
        "approvalPolicy": sandbox_policy_of(config, workspace).approval_policy,
        "developerInstructions": (
            f"{_DEVELOPER_INSTRUCTIONS}\n\n{instructions}" if instructions else _DEVELOPER_INSTRUCTIONS
        ),
        **sandbox,
        "config": {**trust(workspace, projects), **sandbox["config"]},
    }
    model = configured_model(turn, config)
    return {**params, "model": model} if model else params


async def model_override(server: AppServer, turn: Turn, config: Config, thread: OpenThread) -> str:
    """The model to name for a turn: the configured one, or Codex's default when the thread uses another by now."""
    if model := configured_model(turn, config):
        return model
    default = await server.default_model(turn.session.workspace)
    return default if thread.model != default else ""


def configured_model(turn: Turn, config: Config) -> str:
    """The model that this session or this home names; empty for the one of Codex's own settings."""
    return turn.state().settings.get("codex.model") or config.codex.model
