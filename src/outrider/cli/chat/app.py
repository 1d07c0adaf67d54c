"""How a chat begins and ends: which session, which screen, the greeting, what is looked for meanwhile, the farewell."""

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
from outrider.cli.chat.conversation import ChatConversation, ChatStart
from outrider.cli.chat.display import DisplayItem, Note
from outrider.cli.chat.renderer import TerminalRenderer
from outrider.cli.chat.sanitize import sanitize_line
from outrider.cli.chat.status import short_path
from outrider.cli.chat.ui import ChatUI
from outrider.cli.commands import DONE
from outrider.config.models import PRACTICE, PROVIDERS, choose_models
from outrider.config.schema import Config
from outrider.core.errors import Refused
from outrider.core.ports import NATIVE
from outrider.core.store_port import Session
from outrider.system.tasks import unwrap_single

HISTORY_FILE = "chat_history"


async def run_chat(agent: AgentApi, options: ChatOptions, settings: Mapping[str, str], root: Path | None) -> int:
    """Talk until the person leaves, or a signal asks us to; the exit code.

    What was typed until then is durable; what runs then is taken up next time.
    """
    ending = ChatSignalWatch()
    face = _create_ui(agent.config)
    found = await _find_session(agent, options, root)
    try:
        async with anyio.create_task_group() as group:
            opened = ChatStart(root, settings, "" if found else options.session)
            chat = ChatConversation(agent, face, opened, group)
            known = settings_of(await agent.journal(found) if found and agent.owner_mismatch({}) else ())
            told = agent.owner_mismatch({**known, **settings})
            face.show(_greeting(chat, options, found, [*agent.notices, *([told] if told else [])]))
            if found:
                await chat.open(found)
            elif options.session:
                group.start_soon(chat.open_when_created, options.session)
            for task in (chat.process_input, chat.resume_unfinished, chat.watch_owner, chat.task_panel.watch_calls):
                group.start_soon(task)
            group.start_soon(_suggest_models, chat)
            await group.start(ending.watch, face)
            await face.run(chat)
            await chat.drain_input()
            if not ending.signal:
                face.show(_farewell(chat))
            group.cancel_scope.cancel()
    except BaseExceptionGroup as several:
        raise unwrap_single(several) from several
    return 128 + ending.signal if ending.signal else DONE


class ChatSignalWatch:
    """Whether a signal ended the chat: the terminal was closed, or somebody wants the process gone."""

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

    painter = TerminalRenderer(is_markdown=config.chat.markdown)
    return TerminalUI(painter, config.home / HISTORY_FILE if config.chat.history else None)


async def _find_session(agent: AgentApi, options: ChatOptions, root: Path | None) -> Session | None:
    """The session to go on with, or None for a new one."""
    found = await agent.sessions(10_000) if options.session or options.is_continued else ()
    if options.is_continued:
        hidden = await child_session_ids(agent)
        found = [session for session in found if session.id not in hidden]
        own = str(agent.config.home / "workspaces") + "/"
        return next((s for s in found if (s.workspace == str(root) if root else s.workspace.startswith(own))), None)
    if not options.session:
        return None
    named = next((s for s in found if options.session in (s.name, s.id)), None)
    if named and options.is_new:
        raise Refused(f"there is a session {options.session!r} already; leave out --new to go on with it")
    if named and options.workspace and named.workspace != str(root):
        raise Refused(f"session {options.session!r} works in {named.workspace}; leave out --workspace, or name another")
    return named


def _greeting(
    chat: ChatConversation, options: ChatOptions, found: Session | None, notices: Sequence[str]
) -> Sequence[DisplayItem]:
    where = short_path(found.workspace if found else chat.workspace, 60)
    if chat.runtime.name != NATIVE:
        first = f"Outrider; {sanitize_line(str(chat.runtime), 80)} carries the turns. /runtime native goes back."
    elif chat.model == PRACTICE:
        keys = " or ".join(provider.key_variables[0] for provider in PROVIDERS[:2] if provider.key_variables)
        first = (
            "Outrider, with the built-in practice model: it needs no key and is good for trying things out.\n"
            f"For a real one, set {keys}, or OUTRIDER_MODEL, and start again."
        )
    else:
        first = f"Outrider, with {sanitize_line(chat.model, 80)}."
    shows: list[DisplayItem] = [Note(first, "plain"), Note(f"It works in {where}. /help shows what you can type.")]
    shows += [Note(text, "warn") for text in (*chat.agent.config.warnings, *notices)]
    if options.is_continued and found is None:
        shows.append(Note("there is no session of this folder yet; this is a new one"))
    return shows


async def _suggest_models(chat: ChatConversation) -> None:
    """Have models at hand when one is typed. While practice is in use, tell of model servers on this machine."""
    config = chat.agent.config
    with_key = [p for p in PROVIDERS if p.default_model and any(key in config.keys for key in p.key_variables)]
    known = [
        (PRACTICE, "built in, needs no key"),
        *((f"{p.name}:{p.default_model}", "its key is set") for p in with_key),
    ]
    chat.add_suggestions({"model": known})
    there = await run_sync(runtime_names, abandon_on_cancel=True)  # The prompt does not wait for this.
    chat.add_suggestions({"runtime": [(name, _runtime_description(name)) for name in there]})
    if chat.runtime.name != NATIVE or choose_models(config)[0].wire != PRACTICE:
        return
    from outrider.config.discover import find_local_servers

    for offer in await run_sync(find_local_servers, abandon_on_cancel=True):
        models = [f"{offer.provider}:{model}" for model in offer.models]
        chat.add_suggestions({"model": [(name, f"on this machine, {offer.url}") for name in models]})
        if models:
            chat.ui.show([Note(f"{offer.provider} runs on this machine; to use it: /model {models[0]}", "good")])


def _runtime_description(runtime: str) -> str:
    return {NATIVE: "our own loop, with any model", "codex": "Codex", "acp": "the agent of acp.command"}.get(
        runtime, ""
    )


def _farewell(chat: ChatConversation) -> Sequence[DisplayItem]:
    if chat.session is None:
        return []
    back = f"outrider chat -s {sanitize_line(chat.session.name)}"
    if chat.view.open_question:
        return [Note(f"a question waits for you, and will be there when you come back: {back}", "warn")]
    if chat.is_working:
        rest = "it goes on" if chat.agent.is_client else "it is taken up by `outrider resume`, or when you come back"
        return [Note(f"the turn is not over; {rest}: {back}", "warn")]
    count = chat.task_panel.background_count
    tasks = f"{count} task{'s go' if count > 1 else ' goes'} on, and you are told of the end there; " if count else ""
    return [Note(f"{tasks}to go on: {back}")]
