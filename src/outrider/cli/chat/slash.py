"""Handlers of the slash commands in the terminal chat."""

from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from anyio.to_thread import run_sync

from outrider.app.runtimes import apply_settings, find_program, parse_runtime, runtime_names
from outrider.app.slash_commands import COMMANDS, SlashCommand
from outrider.cli.chat.background import child_session_ids
from outrider.cli.chat.display import DisplayItem, Note, OutputLines, QuestionText
from outrider.cli.chat.sanitize import sanitize_line
from outrider.cli.chat.session_view import last_lines
from outrider.cli.chat.status import short_count, short_path, short_time
from outrider.cli.chat.task_panel import describe_state, read_tail
from outrider.cli.options import model_settings
from outrider.cli.output import now_ms, time_ago
from outrider.cli.questions import find_question, question_session
from outrider.cli.render import markdown_page
from outrider.core.approvals import NO, ONCE, render_need
from outrider.core.errors import Refused
from outrider.core.events import Asked
from outrider.core.ports import NATIVE
from outrider.core.store_port import session_status
from outrider.core.tasks import Task, task_label
from outrider.core.text import duration, escape_invisible, plural
from outrider.system.files import write_private

if TYPE_CHECKING:
    from outrider.cli.chat.conversation import ChatConversation


def two_columns(rows: Sequence[tuple[str, str]], *, is_table: bool = False) -> Note:
    """Rows with aligned columns. In a table each row stays one line, whatever the width of the terminal."""
    width = max(len(left) for left, _ in rows)
    return Note("\n".join(f"{left:<{width}}  {right}" for left, right in rows), "plain", is_table)


_MAX_ENDED_TASKS = 10
_MAX_SESSIONS = 15
_TASK_OUTPUT_LINES = 20


async def _stop(chat: "ChatConversation", argument: str) -> Sequence[DisplayItem]:
    with_tasks, count = argument.lower() == "all", chat.task_panel.background_count
    if chat.session and await chat.agent.stop(chat.session, tasks=with_tasks):
        if with_tasks:  # The notices about the killed tasks must not start another turn.
            await chat.agent.stop(chat.session)
        return [Note(f"Stopped {plural(count, 'background task')}", "warn")] if with_tasks and count else []
    hint = f"; /stop all stops its {plural(count, 'background task')}" if count else ""
    return [Note(f"Nothing is running in this session{hint}")]


async def _find_task(chat: "ChatConversation", name: str) -> Task:
    with _hint_in_chat("`outrider tasks list`", "/tasks"):
        return await chat.agent.find_task(name)


@contextmanager
def _hint_in_chat(command: str, slash_command: str) -> Generator[None]:
    """Name the slash command in an error that names the command of the shell."""
    try:
        yield
    except Refused as error:
        if type(error) is not Refused or command not in str(error):
            raise
        raise Refused(str(error).replace(command, slash_command)) from None


async def _tasks(chat: "ChatConversation", name: str) -> Sequence[DisplayItem]:
    if name:
        return await _show_task(chat, await _find_task(chat, name))
    tasks = await chat.agent.tasks()
    session_id = chat.session.id if chat.session else ""
    own = [task for task in tasks if task.session == session_id]
    ended = [task for task in own if not (task.is_open or task.spec.is_awaited)]
    own = [*(task for task in own if task.is_open), *ended[:_MAX_ENDED_TASKS]]
    others = [task for task in tasks if task.is_open and task.session != session_id]
    chat.add_suggestions({"task": [(task.id, sanitize_line(task_label(task), 40)) for task in (*own, *others)]})
    if not own and not others:
        return [Note("There are no tasks. The agent starts one for a long-running command.")]
    items: list[DisplayItem] = [
        two_columns(_task_rows(own), is_table=True) if own else Note("There are no tasks in this session")
    ]
    if others:
        items += [Note("In other sessions:"), two_columns(_task_rows(others), is_table=True)]
    return items


def _task_rows(tasks: Sequence[Task]) -> Sequence[tuple[str, str]]:
    now = now_ms()
    rows: list[tuple[str, str]] = []
    for task in tasks:
        state = describe_state(task) if task.ended else task.state
        when = f"for {duration(now - task.created)}" if task.is_open else time_ago(task.ended, now)
        rows.append((task.id, f"{state:<28} {when:<12} {sanitize_line(task_label(task))}"))
    return rows


async def _show_task(chat: "ChatConversation", task: Task) -> Sequence[DisplayItem]:
    spec = task.spec
    rows = [
        ("task", task.id),
        ("command" if spec.kind == "command" else "prompt", spec.command),
        ("description", spec.description),
        ("state", describe_state(task) + (f", for {duration(now_ms() - task.created)}" if task.is_open else "")),
        ("reason", task.why),
        ("folder", task.workspace + (f"/{spec.workdir}" if spec.workdir else "")),
        ("allowed", ", ".join(spec.grants)),
        ("output", chat.agent.commands.output_file(task) if spec.kind == "command" else ""),
    ]
    table = two_columns([(left, sanitize_line(escape_invisible(right), 300)) for left, right in rows if right])
    lines = last_lines(await read_tail(chat.agent, task), _TASK_OUTPUT_LINES)
    return [table, OutputLines(lines)] if lines else [table]


async def _tail(chat: "ChatConversation", name: str) -> Sequence[DisplayItem]:
    task = await _find_task(chat, name)
    if task.spec.kind == "session":
        raise Refused(f"{task.id} is a child session; open it with /switch {sanitize_line(f'child {task.id}')}")
    chat.task_panel.follow(task)
    return []


async def _write_input(chat: "ChatConversation", argument: str) -> Sequence[DisplayItem]:
    name, _, text = argument.partition(" ")
    task = await _find_task(chat, name)
    if not task.is_open or task.spec.kind == "session":
        why = "it is a child session" if task.is_open else f"it has ended ({describe_state(task)})"
        raise Refused(f"{task.id} takes no input: {why}")
    await run_sync(chat.agent.commands.write, task, text.encode() + b"\n")
    await chat.agent.refresh_task(task)
    return [Note(f"Sent to {task.id}", "good")]


async def _kill(chat: "ChatConversation", name: str) -> Sequence[DisplayItem]:
    task = await _find_task(chat, name)
    if not task.is_open:
        return [Note(f"{task.id} has already ended: {describe_state(task)}")]
    ended = await chat.agent.kill_task(task)
    if ended.is_delivered and chat.session and ended.session == chat.session.id:
        return []  # Its notice says so.
    return [Note(f"Killed {ended.id} and all its processes: {describe_state(ended)}", "good")]


async def _answer(chat: "ChatConversation", question: Asked | None, answer: str) -> Sequence[DisplayItem]:
    if question is None:
        return [Note("There is no pending question in this session")]
    await chat.answer(question, answer)
    return []


async def _questions(chat: "ChatConversation", argument: str) -> Sequence[DisplayItem]:
    pending = await chat.agent.pending_questions()
    id, _, answer = argument.partition(" ")
    if id:
        question = find_question(pending, id)
        asked = question.asked
        if not answer:
            return [QuestionText(asked.ask, asked.question, asked.choices, asked.request, is_whole=True)]
        if not await chat.agent.answer(question.session, asked, answer.strip().lower()):
            return [Note("That question is no longer open", "warn")]
        return [Note(f"Answered {answer.strip().lower()}", "good")]
    if not pending:
        return [Note("There are no pending questions")]
    rows = [
        (question.id, f"{question_session(question)}: {sanitize_line(escape_invisible(question.asked.question), 100)}")
        for question in pending
    ]
    hint = "/questions ID shows all of one, /questions ID once|session|workspace|no answers it"
    return [two_columns(rows), Note(hint)]


async def _permissions(chat: "ChatConversation", argument: str) -> Sequence[DisplayItem]:
    permissions = await chat.agent.permissions()
    chat.add_suggestions(
        {"permission": [(f"forget {permission.id}", render_need(permission.need)) for permission in permissions]}
    )
    verb, _, name = argument.partition(" ")
    if verb == "forget" and name:
        if await chat.agent.revoke_permission(name.strip()):
            return [Note(f"Revoked {sanitize_line(name)}", "good")]
        raise Refused(f"there is no permission {sanitize_line(name)!r}; /permissions lists all permissions")
    if argument:
        raise Refused("type /permissions, or /permissions forget PERMISSION")
    if not permissions:
        return [Note("You have granted no permissions")]
    names = {session.id: session.name for session in await chat.agent.sessions(10_000)}
    rows: list[tuple[str, str]] = []
    for permission in permissions:
        target = permission.applies_to
        where = sanitize_line(names.get(target, target)) if permission.scope == "session" else short_path(target, 60)
        when = time_ago(permission.created, now_ms())
        need = sanitize_line(render_need(permission.need), 60)
        rows.append((permission.id, f"{need}, in {permission.scope} {where}  ({when})"))
    return [two_columns(rows)]


_KEY_HELP = (
    ("Enter", "send; during a turn, the agent reads the message in its next step"),
    ("Alt-Enter, Ctrl-J", "insert a new line"),
    ("Up, Down, Ctrl-R", "browse or search the input history"),
    ("Tab", "complete a command or its argument"),
    ("v", "show a pending question in full"),
    (
        "o, s, w, n",
        "answer a pending question: once, this session, this workspace, no; the question says which it offers",
    ),
    ("Ctrl-C", "stop following a task, stop the running turn, or clear the line"),
    ("Ctrl-D", "leave"),
)
_RUNTIME_HINT = f"/runtime NAME switches to another one, /runtime {NATIVE} to the built-in loop"


async def run_command(chat: "ChatConversation", command: SlashCommand, question: Asked | None) -> Sequence[DisplayItem]:
    """Run a command and return what to show. `question` was pending at that time. Raises Refused or Unavailable."""
    match command.command.name:
        case "yes":
            return await _answer(chat, question, command.argument.lower() or ONCE)
        case "no":
            return await _answer(chat, question, NO)
        case name:
            return await COMMAND_HANDLERS[name](chat, command.argument)


async def _help(chat: "ChatConversation", argument: str) -> Sequence[DisplayItem]:
    rows = [(command.usage, command.description) for command in COMMANDS]
    rows += [("//TEXT", "send a message that begins with a slash")]
    return [Note(f"{two_columns(rows).text}\n\n{two_columns(_KEY_HELP).text}", "plain")]


async def _new(chat: "ChatConversation", name: str) -> Sequence[DisplayItem]:
    if name and any(session.name == name for session in await chat.agent.sessions(10_000)):
        raise Refused(f"session {name!r} already exists; open it with /switch {name}")
    hint = ""
    if chat.session and chat.view.open_question:
        hint = f"; the pending question stays in the previous one (/switch {sanitize_line(chat.session.name)})"
    elif chat.is_working:
        hint = "; the running turn continues in the background"
    await chat.start_new_session(name)
    return [Note(f"New session{hint}")]


async def _status(chat: "ChatConversation", argument: str) -> Sequence[DisplayItem]:
    info, view, session = chat.status_info(), chat.view, chat.session
    usage = view.usage
    activity = "idle" if info.seconds is None else f"working for {short_time(info.seconds)}"
    activity = "waiting for your answer" if info.is_asking else activity
    rows = [
        ("session", f"{session.name} ({session.id})" if session else "new (created with your first message)"),
        *([("runtime", str(chat.runtime))] if chat.runtime.name != NATIVE else [("model", chat.model)]),
        ("workspace", chat.workspace),
        ("state", activity),
        ("tokens", f"{usage.input:,} in ({short_count(usage.cached)} cached), {usage.output:,} out"),
    ]
    rows += [("context", f"{view.state.context:,} tokens in the last prompt and reply")] if view.state.context else []
    rows += [("cost", f"${info.cost:.4f}")] if info.cost is not None else []
    rows += [("queued", plural(info.queued, "message"))] if info.queued else []
    rows += [("tasks", f"{info.tasks} in the background")] if info.tasks else []
    return [two_columns([(left, sanitize_line(right, 200)) for left, right in rows])]


async def _model(chat: "ChatConversation", name: str) -> Sequence[DisplayItem]:
    if not name and chat.runtime.name != NATIVE:
        return [Note(f"{chat.runtime} runs the turns with its own model · {_RUNTIME_HINT}", "plain")]
    if not name:
        return [Note(f"{chat.model} · /model NAME switches to another one in this session", "plain")]
    settings, before = model_settings(chat.agent.config, name), chat.runtime
    await apply_settings(chat.agent, await chat.ensure_session(), settings)
    runtime = f", with the {NATIVE} runtime instead of {before}" if before.name != NATIVE else ""
    return [Note(f"This session uses {settings['model']}{_when_applied(chat)}{runtime}", "good")]


async def _runtime(chat: "ChatConversation", name: str) -> Sequence[DisplayItem]:
    if not name:
        names = [f"{'›' if each == chat.runtime.name else ' '} {each}" for each in runtime_names()]
        return [Note("\n".join((*names, f"{chat.runtime} runs the turns of this session · {_RUNTIME_HINT}")), "plain")]
    choice, before = parse_runtime(name), chat.runtime
    find_program(chat.agent.config, choice.name)
    has_history = chat.view.head > 0
    if not await apply_settings(chat.agent, await chat.ensure_session(), choice.settings):
        return [Note(f"{choice} already runs the turns of this session")]
    history = ""
    if has_history and choice.name != before.name:
        history = "; it sees the whole session" if choice.name == NATIVE else "; it first receives what it has not seen"
    return [Note(f"{choice} runs the turns of this session{_when_applied(chat)}{history}", "good")]


def _when_applied(chat: "ChatConversation") -> str:
    return " from the next turn on" if chat.is_working else ""


async def _sessions(chat: "ChatConversation", argument: str) -> Sequence[DisplayItem]:
    hidden = await child_session_ids(chat.agent)
    sessions = [session for session in await chat.agent.sessions(100) if session.id not in hidden][:_MAX_SESSIONS]
    if not sessions:
        return [Note("There are no sessions yet")]
    await chat.load_session_names()
    now, open_id = now_ms(), chat.session.id if chat.session else ""
    rows = [
        (
            f"{'›' if session.id == open_id else ' '} {sanitize_line(session.name, 30)}",
            f"{time_ago(session.updated, now):<10} {session_status(session):<10} {sanitize_line(session.title, 50)}",
        )
        for session in sessions
    ]
    return [two_columns(rows, is_table=True)]


async def _switch(chat: "ChatConversation", name: str) -> Sequence[DisplayItem]:
    with _hint_in_chat("`outrider sessions list`", "/sessions"):
        session = await chat.agent.find_by_prefix(name)
    if chat.session and session.id == chat.session.id:
        return [Note("This session is already open")]
    heading = Note(f"Session {sanitize_line(session.name)} in {short_path(session.workspace, 60)}")
    await chat.open(session, heading)
    return []


async def _compact(chat: "ChatConversation", argument: str) -> Sequence[DisplayItem]:
    if chat.session is None or chat.view.head == 0:
        return [Note("There is nothing to summarise yet")]
    if chat.runtime.name != NATIVE:
        return [Note(f"{chat.runtime.name} manages its own context and compacts it automatically")]
    session = await chat.agent.find(chat.session.id)
    await chat.agent.change(session, {"compact": str(session.head)})
    return [Note("Earlier messages will be summarised before the next reply")]


async def _search(chat: "ChatConversation", words: str) -> Sequence[DisplayItem]:
    hits = await chat.agent.search(words, 10)
    if not hits:
        return [Note(f"No matches for {sanitize_line(words, 60)}")]
    rows = [(sanitize_line(hit.name, 30), sanitize_line(hit.excerpt, 200)) for hit in hits]
    return [two_columns(rows, is_table=True)]


async def _export(chat: "ChatConversation", file: str) -> Sequence[DisplayItem]:
    if chat.session is None:
        return [Note("There is nothing to export yet")]
    session = await chat.agent.find(chat.session.id)
    page = markdown_page(session, await chat.agent.journal(session))
    name = "".join(char if char.isalnum() or char in "-_" else "-" for char in session.name)[:60]
    path = await run_sync(_write_new_file, file or f"{name}.md", page)
    return [Note(f"Exported to {path}", "good")]


async def _quit(chat: "ChatConversation", argument: str) -> Sequence[DisplayItem]:
    chat.ui.exit()
    return []


def _write_new_file(file: str, page: str) -> Path:
    """Write a file that only its owner can read. Raises Refused when it exists."""
    path = Path(file).expanduser().absolute()
    try:
        write_private(path, page.encode(errors="replace"))
    except FileExistsError:
        raise Refused(f"{path} already exists; choose another file: /export FILE") from None
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
    "permissions": _permissions,
    "questions": _questions,
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
"""The handlers by command; `yes` and `no` also need the question, see `run_command`."""
