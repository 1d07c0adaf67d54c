"""The chat from start to end: finds the session, opens the terminal, greets, runs, and says how to return."""

import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

import anyio
from anyio.abc import TaskStatus
from anyio.to_thread import run_sync
from prompt_toolkit.utils import is_dumb_terminal

from outrider.app.api import AgentApi
from outrider.app.runtimes import runtime_names, settings_of
from outrider.cli.chat.background import child_session_ids
from outrider.cli.chat.command import ChatOptions
from outrider.cli.chat.conversation import ChatConversation
from outrider.cli.chat.display import DisplayItem, Note
from outrider.cli.chat.renderer import TerminalRenderer
from outrider.cli.chat.sanitize import sanitize_line
from outrider.cli.chat.status import short_path
from outrider.cli.chat.ui import ChatUI
from outrider.cli.commands import DONE
from outrider.cli.setup import continue_in_folder
from outrider.config.models import PRACTICE, PROVIDERS, choose_models
from outrider.config.schema import Config
from outrider.core.errors import Refused
from outrider.core.ports import NATIVE
from outrider.core.store_port import Session
from outrider.core.text import plural
from outrider.core.types import REMOTE
from outrider.system.task_groups import unwrap_errors

HISTORY_FILE = "chat_history"
_RUNTIME_DESCRIPTIONS = {
    NATIVE: "the built-in loop, for any model",
    "codex": "Codex",
    "acp": "the agent in acp.command",
    REMOTE: "the agent at remote.url",
}


async def run_chat(agent: AgentApi, options: ChatOptions, settings: Mapping[str, str], root: Path | None) -> int:
    """Chat until the user leaves or a signal arrives; returns the exit code.

    Everything typed until then is durable; an unfinished turn is resumed next time.
    """
    signals = ChatSignalWatch()
    ui = _create_ui(agent.config)
    session = await _find_session(agent, options, root)
    with unwrap_errors():
        async with anyio.create_task_group() as group:
            name = "" if session else options.session or ""
            chat = ChatConversation(agent, ui, group, root=root, settings=settings, session_name=name)
            own_settings = settings_of(await agent.journal(session) if session and agent.owner_mismatch({}) else ())
            mismatch = agent.owner_mismatch({**own_settings, **settings})
            ui.show(_greeting(chat, options, session, [*agent.notices, *([mismatch] if mismatch else [])]))
            if session:
                await chat.open(session)
            elif options.session:
                group.start_soon(chat.open_when_created, options.session)
            for task in (chat.process_input, chat.resume_unfinished, chat.watch_owner, chat.task_panel.watch_calls):
                group.start_soon(task)
            group.start_soon(chat.background.watch_other_people)
            group.start_soon(_suggest_models, chat)
            await group.start(signals.watch, ui)
            await ui.run(chat)
            await chat.drain_input()
            if not signals.signal:
                ui.show(_farewell(chat))
            group.cancel_scope.cancel()
    return 128 + signals.signal if signals.signal else DONE


class ChatSignalWatch:
    """Ends the chat at SIGTERM or SIGHUP, and remembers which signal it was."""

    signal: int = 0

    async def watch(self, ui: ChatUI, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGHUP) as signals:
            task_status.started()
            async for number in signals:
                self.signal = number
                ui.exit()


def _create_ui(config: Config) -> ChatUI:
    if is_dumb_terminal():
        from outrider.cli.chat.dumb_terminal import DumbTerminalUI

        return DumbTerminalUI(TerminalRenderer(is_plain=True))
    from outrider.cli.chat.terminal import TerminalUI

    renderer = TerminalRenderer(is_markdown=config.chat.markdown)
    return TerminalUI(renderer, config.home / HISTORY_FILE if config.chat.history else None)


async def _find_session(agent: AgentApi, options: ChatOptions, root: Path | None) -> Session | None:
    """The session to continue, or None for a new one."""
    sessions = await agent.sessions(10_000) if options.session or options.is_continued else ()
    if options.is_continued:
        hidden = await child_session_ids(agent)
        own = str(agent.config.home / "workspaces") + "/"
        session = next(
            (
                each
                for each in sessions
                if each.id not in hidden and (each.workspace == str(root) if root else each.workspace.startswith(own))
            ),
            None,
        )
    elif not options.session:
        return None
    else:
        session = next((each for each in sessions if options.session in (each.name, each.id)), None)
        if session and options.is_new:
            raise Refused(f"session {options.session!r} already exists; leave out --new to continue it")
        if session:
            session = await continue_in_folder(agent, session, root, is_explicit=bool(options.workspace))
        if session and options.workspace and session.workspace != str(root):
            raise Refused(f"the workspace of session {options.session!r} is {session.workspace}; leave out --workspace")
    # In the folder of a session, a person means the folder that is there now.
    return await agent.session(session.name) if session and session.workspace == str(root) else session


def _greeting(
    chat: ChatConversation, options: ChatOptions, session: Session | None, notices: Sequence[str]
) -> Sequence[DisplayItem]:
    workspace = short_path(session.workspace if session else chat.workspace, 60)
    if chat.runtime.name == REMOTE:
        first = f"Outrider. Every turn is forwarded to {sanitize_line(chat.agent.config.remote.url, 200)} (remote.url)."
    elif chat.runtime.name != NATIVE:
        first = f"Outrider with the runtime {sanitize_line(str(chat.runtime), 80)}. /runtime native switches back."
    elif chat.model == PRACTICE:
        keys = ", ".join(provider.key_variables[0] for provider in PROVIDERS[:2] if provider.key_variables)
        first = (
            "Outrider with the built-in practice model (no real model is configured).\n"
            f"To use a real one, set {keys} or OUTRIDER_MODEL and start again."
        )
    else:
        first = f"Outrider with {sanitize_line(chat.model, 80)}"
    items: list[DisplayItem] = [
        Note(first, "plain"),
        Note(f"Workspace: {workspace}. Type /help for commands and keys."),
    ]
    items += [Note(text, "warn") for text in (*chat.agent.config.warnings, *notices)]
    if options.is_continued and session is None:
        items.append(Note("There is no session in this folder yet; this is a new one"))
    return items


async def _suggest_models(chat: ChatConversation) -> None:
    """Suggest models and runtimes as arguments; with the practice model, also offer model servers on this machine."""
    config = chat.agent.config
    with_key = [p for p in PROVIDERS if p.default_model and any(key in config.keys for key in p.key_variables)]
    models = [
        (PRACTICE, "built-in, needs no key"),
        *((f"{provider.name}:{provider.default_model}", "its key is set") for provider in with_key),
    ]
    chat.add_suggestions({"model": models})
    runtimes = await run_sync(runtime_names, abandon_on_cancel=True)  # Slow; the prompt does not wait for it.
    chat.add_suggestions({"runtime": [(name, _RUNTIME_DESCRIPTIONS.get(name, "")) for name in runtimes]})
    if chat.runtime.name != NATIVE or choose_models(config)[0].wire != PRACTICE:
        return
    from outrider.config.discover import find_local_servers

    for offer in await find_local_servers():
        models = [f"{offer.provider}:{model}" for model in offer.models]
        chat.add_suggestions({"model": [(name, f"on this machine, {offer.url}") for name in models]})
        if models:
            chat.ui.show([Note(f"{offer.provider} is running on this machine. To use it: /model {models[0]}", "good")])


def _farewell(chat: ChatConversation) -> Sequence[DisplayItem]:
    if chat.session is None:
        return []
    command = f"outrider chat -s {sanitize_line(chat.session.name)}"
    if chat.view.open_question:
        return [Note(f"A question is waiting for your answer. To answer it: {command}", "warn")]
    if chat.is_working and chat.agent.is_client:
        return [Note(f"The turn continues without this chat. To return: {command}", "warn")]
    if chat.is_working:
        return [Note(f"The turn is not finished. To finish it: outrider resume, or {command}", "warn")]
    count = chat.task_panel.background_count
    tasks = f"{plural(count, 'task')} still running in the background. " if count else ""
    return [Note(f"{tasks}To continue: {command}")]
