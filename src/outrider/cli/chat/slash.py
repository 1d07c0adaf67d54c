"""Two columns of text, for what /commands show. Pure.

What the /commands about tasks, questions and grants do in the terminal.

What the /commands do in the terminal.
"""

import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from anyio.to_thread import run_sync

from outrider.app.runtimes import apply_settings, find_program, parse_runtime, runtime_names
from outrider.app.slash_commands import COMMANDS, SlashCommand
from outrider.cli.chat.background import child_session_ids
from outrider.cli.chat.display import DisplayItem, Note, OutputLines
from outrider.cli.chat.sanitize import sanitize_line
from outrider.cli.chat.session_view import last_lines
from outrider.cli.chat.status import short_count, short_path, short_time
from outrider.cli.chat.task_panel import describe_state, read_tail
from outrider.cli.options import model_settings
from outrider.cli.output import time_ago
from outrider.cli.render import markdown_page
from outrider.core.approvals import NO, ONCE
from outrider.core.errors import Refused
from outrider.core.ports import NATIVE
from outrider.core.store_port import session_status
from outrider.core.tasks import Task, task_label
from outrider.core.text import duration

if TYPE_CHECKING:
    from outrider.cli.chat.conversation import ChatConversation


def two_columns(rows: Sequence[tuple[str, str]]) -> Note:
    """One line for each row."""
    wide = max(len(left) for left, _ in rows)
    return Note("\n".join(f"{left:<{wide}}  {right}" for left, right in rows), "plain")


_MAX_ENDED_TASKS = 10
"""Tasks that have ended are listed up to so many."""
_TASK_OUTPUT_LINES = 20
"""Lines of a task's output."""


async def _stop(chat: "ChatConversation", argument: str) -> Sequence[DisplayItem]:
    everything = argument.lower() == "all"
    if chat.session and await chat.agent.stop(chat.session, tasks=everything):
        if everything:  # Nor is the model to begin anew because it was told that its tasks are gone.
            await chat.agent.stop(chat.session)
        return []
    hint = (
        f"; /stop all ends its {chat.task_panel.background_count} in the background"
        if chat.task_panel.background_count
        else ""
    )
    return [Note(f"nothing runs in this session{hint}")]


async def _tasks(chat: "ChatConversation", name: str) -> Sequence[DisplayItem]:
    if name:
        return await _show_task(chat, await chat.agent.find_task(name))
    everything = await chat.agent.tasks()
    here = chat.session.id if chat.session else ""
    own = [task for task in everything if task.session == here]
    ended = [task for task in own if not (task.is_open or task.spec.is_awaited)]
    shown = [*(task for task in own if task.is_open), *ended[:_MAX_ENDED_TASKS]]
    others = [task for task in everything if task.is_open and task.session != here]
    chat.add_suggestions({"task": [(task.id, sanitize_line(task_label(task), 40)) for task in (*shown, *others)]})
    if not shown and not others:
        return [Note("there are no tasks; the agent begins them with commands that take long")]
    shows: list[DisplayItem] = [two_columns(_task_rows(shown)) if shown else Note("there are no tasks in this session")]
    if others:
        shows += [Note("in other sessions:"), two_columns(_task_rows(others))]
    return shows


def _task_rows(found: Sequence[Task]) -> Sequence[tuple[str, str]]:
    now = _now_ms()
    return [
        (
            task.id,
            f"{describe_state(task) if task.ended else task.state:<28} "
            f"{'for ' + duration(now - task.created) if task.is_open else time_ago(task.ended, now):<12} {sanitize_line(task_label(task))}",
        )
        for task in found
    ]


async def _show_task(chat: "ChatConversation", task: Task) -> Sequence[DisplayItem]:
    wish, now = task.spec, _now_ms()
    rows = [
        ("task", task.id),
        ("command" if wish.kind == "command" else "work", wish.command),
        ("for", wish.description),
        ("state", describe_state(task) + (f", for {duration(now - task.created)}" if task.is_open else "")),
        ("reason", task.why),
        ("folder", task.workspace + (f"/{wish.workdir}" if wish.workdir else "")),
        ("allowed", ", ".join(wish.grants)),
        ("output", chat.agent.commands.output_file(task) if wish.kind == "command" else ""),
    ]
    shown = two_columns([(left, sanitize_line(right, 300)) for left, right in rows if right])
    lines = last_lines(await read_tail(chat.agent, task), _TASK_OUTPUT_LINES)
    return [shown, OutputLines(lines)] if lines else [shown]


async def _tail(chat: "ChatConversation", name: str) -> Sequence[DisplayItem]:
    task = await chat.agent.find_task(name)
    if task.spec.kind == "session":
        raise Refused(f"{task.id} is a session of its own: /switch {sanitize_line(f'child {task.id}')} shows it")
    chat.task_panel.follow(task)
    return []


async def _write_input(chat: "ChatConversation", argument: str) -> Sequence[DisplayItem]:
    name, _, text = argument.partition(" ")
    task = await chat.agent.find_task(name)
    if not task.is_open or task.spec.kind == "session":
        raise Refused(f"{task.id} reads nothing: {'a session' if task.is_open else 'it ' + describe_state(task)}")
    await run_sync(chat.agent.commands.write, task, text.encode() + b"\n")
    return [Note(f"written to {task.id}", "good")]


async def _kill(chat: "ChatConversation", name: str) -> Sequence[DisplayItem]:
    task = await chat.agent.find_task(name)
    if not task.is_open:
        return [Note(f"{task.id} has ended already: {describe_state(task)}")]
    ended = await chat.agent.kill_task(task)
    if ended.is_delivered and chat.session and ended.session == chat.session.id:
        return []  # Its notice says so.
    return [Note(f"{ended.id} and all it started are gone: {describe_state(ended)}", "good")]


async def _yes(chat: "ChatConversation", reach: str) -> Sequence[DisplayItem]:
    return await _answer(chat, reach.lower() or ONCE)


async def _no(chat: "ChatConversation", argument: str) -> Sequence[DisplayItem]:
    return await _answer(chat, NO)


async def _answer(chat: "ChatConversation", answer: str) -> Sequence[DisplayItem]:
    if chat.question_when_typed is None:
        return [Note("no question waits in this session")]
    await chat.answer(chat.question_when_typed, answer)
    return []


async def _permissions(chat: "ChatConversation", argument: str) -> Sequence[DisplayItem]:
    found = await chat.agent.permissions()
    chat.add_suggestions({"permission": [(f"forget {grant.id}", grant.need) for grant in found]})
    verb, _, name = argument.partition(" ")
    if verb == "forget" and name:
        if await chat.agent.revoke_permission(name.strip()):
            return [Note(f"{sanitize_line(name)} is taken back: it will be asked for again", "good")]
        raise Refused(f"there is no permission {sanitize_line(name)!r}; /permissions lists them")
    if argument:
        raise Refused("say /permissions, or /permissions forget PERMISSION")
    if not found:
        return [Note("nothing is allowed beyond what every command may do")]
    names = {session.id: session.name for session in await chat.agent.sessions(10_000)}
    rows = [
        (
            grant.id,
            f"{sanitize_line(grant.need, 60)}, in {grant.scope} "
            + (
                sanitize_line(names.get(grant.applies_to, grant.applies_to))
                if grant.scope == "session"
                else short_path(grant.applies_to, 60)
            )
            + f"  ({time_ago(grant.created, _now_ms())})",
        )
        for grant in found
    ]
    return [two_columns(rows)]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


_KEY_HELP = (
    ("Enter", "send; while the agent works, it reads it in its next step"),
    ("Alt-Enter, Ctrl-J", "begin a new line"),
    ("Up, Down, Ctrl-R", "what was typed before"),
    ("o, s, w, n", "answer a question that waits: once, this session, this workspace, no"),
    ("Ctrl-C", "stop following a task, stop the running turn, or clear the line"),
    ("Ctrl-D", "leave"),
)
_RUNTIME_HINT = f"/runtime NAME has another carry them, /runtime {NATIVE} our own loop"


async def run_command(chat: "ChatConversation", command: SlashCommand) -> Sequence[DisplayItem]:
    """Do it, and say what to show. Raises Refused or Unavailable in one line."""
    return await COMMAND_HANDLERS[command.command.name](chat, command.argument)


async def _help(chat: "ChatConversation", argument: str) -> Sequence[DisplayItem]:
    rows = [(command.usage, command.description) for command in COMMANDS]
    rows += [("//TEXT", "say something that begins with a slash")]
    return [two_columns(rows), Note(""), two_columns(_KEY_HELP)]


async def _new(chat: "ChatConversation", name: str) -> Sequence[DisplayItem]:
    if name and any(session.name == name for session in await chat.agent.sessions(10_000)):
        raise Refused(f"there is a session {name!r} already; /switch {name} goes on with it")
    goes_on = ""
    if chat.session and chat.view.open_question:
        goes_on = f"; the question before waits in its own (/switch {sanitize_line(chat.session.name)})"
    elif chat.is_working:
        goes_on = "; the turn before goes on, and you will be told when it ends"
    await chat.start_new_session(name)
    return [Note(f"a new session{goes_on}")]


async def _status(chat: "ChatConversation", argument: str) -> Sequence[DisplayItem]:
    standing, view, session = chat.status_info(), chat.view, chat.session
    usage = view.usage
    rows = [
        ("session", f"{session.name} ({session.id})" if session else "new; it is made with your first message"),
        *([("runtime", str(chat.runtime))] if chat.runtime.name != NATIVE else [("model", chat.model)]),
        ("workspace", chat.workspace),
        ("state", "waits for you" if standing.is_asking else _describe_activity(standing.seconds)),
        ("tokens", f"{usage.input:,} in ({short_count(usage.cached)} from the cache), {usage.output:,} out"),
    ]
    rows += [("context", f"{view.state.context:,} tokens in the last prompt and reply")] if view.state.context else []
    rows += [("cost", f"${standing.cost:.4f}")] if standing.cost is not None else []
    rows += [("queued", str(standing.queued))] if standing.queued else []
    rows += [("tasks", f"{standing.tasks} in the background")] if standing.tasks else []
    return [two_columns([(left, sanitize_line(right, 200)) for left, right in rows])]


def _describe_activity(seconds: int | None) -> str:
    return "idle" if seconds is None else f"working for {short_time(seconds)}"


async def _model(chat: "ChatConversation", name: str) -> Sequence[DisplayItem]:
    if not name and chat.runtime.name != NATIVE:
        return [Note(f"{chat.runtime} carries the turns and asks a model of its own · {_RUNTIME_HINT}", "plain")]
    if not name:
        return [Note(f"{chat.model} · /model NAME uses another in this session", "plain")]
    settings, before = model_settings(chat.agent.config, name), chat.runtime
    await apply_settings(chat.agent, await chat.ensure_session(), settings)
    back = f", and {NATIVE} carries its turns in place of {before}" if before.name != NATIVE else ""
    return [Note(f"this session uses {settings['model']}{_when_applied(chat)}{back}", "good")]


async def _runtime(chat: "ChatConversation", name: str) -> Sequence[DisplayItem]:
    if not name:
        there = [f"{'›' if known == chat.runtime.name else ' '} {known}" for known in runtime_names()]
        return [
            Note("\n".join((*there, f"{chat.runtime} carries the turns of this session · {_RUNTIME_HINT}")), "plain")
        ]
    wanted, before = parse_runtime(name), chat.runtime
    find_program(chat.agent.config, wanted.name)
    has_past = chat.view.head > 0
    if not await apply_settings(chat.agent, await chat.ensure_session(), wanted.settings):
        return [Note(f"{wanted} carries the turns of this session already")]
    told = ""
    if has_past and wanted.name != before.name:
        told = "; it knows all of the session" if wanted.name == NATIVE else "; it is told first what it has not seen"
    return [Note(f"{wanted} carries the turns of this session{_when_applied(chat)}{told}", "good")]


def _when_applied(chat: "ChatConversation") -> str:
    return ", from the next turn on" if chat.is_working else ""


async def _sessions(chat: "ChatConversation", argument: str) -> Sequence[DisplayItem]:
    hidden = await child_session_ids(chat.agent)
    found = [session for session in await chat.agent.sessions(100) if session.id not in hidden][:15]
    if not found:
        return [Note("there are no sessions yet")]
    await chat.load_session_names()
    now = int(time.time() * 1000)
    here = chat.session.id if chat.session else ""
    rows = [
        (
            f"{'›' if session.id == here else ' '} {sanitize_line(session.name, 30)}",
            f"{time_ago(session.updated, now):<10} {session_status(session):<10} {sanitize_line(session.title, 50)}",
        )
        for session in found
    ]
    return [two_columns(rows)]


async def _switch(chat: "ChatConversation", name: str) -> Sequence[DisplayItem]:
    session = await chat.agent.find_by_prefix(name)
    if chat.session and session.id == chat.session.id:
        return [Note("this is that session")]
    await chat.open(session)
    return [Note(f"session {sanitize_line(session.name)}, in {short_path(session.workspace, 60)}")]


async def _compact(chat: "ChatConversation", argument: str) -> Sequence[DisplayItem]:
    if chat.session is None or chat.view.head == 0:
        return [Note("there is nothing to summarise yet")]
    if chat.runtime.name != NATIVE:
        return [Note(f"{chat.runtime.name} keeps its own memory of the session, and shortens it by itself")]
    session = await chat.agent.find(chat.session.id)
    await chat.agent.change(session, {"compact": str(session.head)})
    return [Note("the earlier part of this session will be summarised before the next reply")]


async def _search(chat: "ChatConversation", words: str) -> Sequence[DisplayItem]:
    found = await chat.agent.search(words, 10)
    if not found:
        return [Note(f"nothing was found for {sanitize_line(words, 60)}")]
    return [two_columns([(sanitize_line(place.name, 30), sanitize_line(place.excerpt, 100)) for place in found])]


async def _export(chat: "ChatConversation", file: str) -> Sequence[DisplayItem]:
    if chat.session is None:
        return [Note("there is nothing to export yet")]
    session = await chat.agent.find(chat.session.id)
    page = markdown_page(session, await chat.agent.journal(session))
    return [
        Note(f"written to {await run_sync(_write_new_file, file or _export_file_name(session.name), page)}", "good")
    ]


async def _quit(chat: "ChatConversation", argument: str) -> Sequence[DisplayItem]:
    chat.ui.exit()
    return []


def _export_file_name(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-_" else "-" for c in name)[:60] + ".md"


def _write_new_file(file: str, page: str) -> Path:
    """Write a new file, for its owner alone. Raises Refused when there is one of this name."""
    path = Path(file).expanduser().absolute()
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as out:
            out.write(page)
    except FileExistsError:
        raise Refused(f"{path} is there already; name another file: /export FILE") from None
    except OSError as error:
        raise Refused(f"{path} cannot be written: {error.strerror}") from None
    return path


COMMAND_HANDLERS: Mapping[str, Callable[["ChatConversation", str], Awaitable[Sequence[DisplayItem]]]] = {
    "help": _help,
    "new": _new,
    "stop": _stop,
    "tasks": _tasks,
    "tail": _tail,
    "write": _write_input,
    "kill": _kill,
    "yes": _yes,
    "no": _no,
    "permissions": _permissions,
    "status": _status,
    "model": _model,
    "runtime": _runtime,
    "sessions": _sessions,
    "switch": _switch,
    "compact": _compact,
    "search": _search,
    "export": _export,
    "quit": _quit,
}
"""One for each command of the registry."""
