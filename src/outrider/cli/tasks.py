"""`outrider tasks`: looks after background work, also while another process uses the home. None of it holds the home
for longer than a moment: whoever waits, waits beside it.

What commands that look after tasks have in common.

Nothing is carried from here: ends of commands are written down, their sessions are not woken.

Tasks for people: a table, a page, a line; and for programs, as JSON.

What a task's command wrote, passed on to stdout: byte by byte into a pipe, harmless on a terminal.
"""

import codecs
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

import anyio
import click

from outrider.app.api import AgentApi
from outrider.app.child_sessions import open_commands
from outrider.cli.commands import DONE, FAILED, LATER
from outrider.cli.output import (
    check_text,
    encode_json,
    format_table,
    format_time,
    one_line,
    print_line,
    printable,
    warn,
)
from outrider.cli.setup import SignalWatch, open_config, open_read_only, run_async
from outrider.config.schema import Config
from outrider.core.errors import Refused
from outrider.core.events import Json, Reply
from outrider.core.ports import Commands
from outrider.core.tasks import Task, TaskState, quoted_tail
from outrider.core.text import duration

_END_TIMEOUT = 10.0
"""Seconds an end that the disk knows of may take to be written down."""


@asynccontextmanager
async def open_tasks(config: Config, label: str) -> AsyncGenerator[AgentApi]:
    """The tasks of a home, whoever owns it. Ends that came while nobody owned it are written down."""
    async with open_read_only(config, label) as desk:
        if owns_home(desk):
            for task in await desk.tasks(open_only=True, limit=10_000):
                if task.spec.kind == "command":
                    await reconcile_task(desk, task)
        yield desk


def owns_home(desk: AgentApi) -> bool:
    """Whether no other process owns the home, so that nothing goes on there."""
    return not desk.is_client


async def last_reply_text(desk: AgentApi, task: Task) -> str:
    """The last words of the child session that is this task's body."""
    journal = await desk.journal(await desk.find(task.child)) if task.child else ()
    replies = [entry.body for entry in journal if isinstance(entry.body, Reply)]
    return next((reply.text for reply in reversed(replies) if reply.text), "")


async def reconcile_task(desk: AgentApi, task: Task) -> Task:
    """This task as it is once an end that the disk knows of is written down."""
    task = await desk.find_task(task.id)
    if not task.is_open or not await command_ended(desk.commands, task):
        return task
    return await desk.wait_task(task, _END_TIMEOUT)


async def command_ended(commands: Commands, task: Task, seconds: float = 0.0) -> bool:
    """Whether the disk says that this command has ended, waiting at most so long for it."""
    if task.process is None:
        await anyio.sleep(seconds)
        return False
    with anyio.move_on_after(seconds):
        await commands.wait_for_end(task)
    return commands.has_ended(task)


_MAX_DESCRIPTION = 60
_STATE_TEXT: dict[TaskState, str] = {
    "succeeded": "succeeded",
    "failed": "failed",
    "killed": "was killed",
    "lost": "was lost",
    "timed_out": "was ended at its time limit",
    "stalled": "seems to wait for input",
    "queued": "waits to be started",
    "running": "runs",
}


def render_task(task: Task, session: str, output_file: str) -> Json:
    """A task, flat. `session` is its session's name."""
    wish = task.spec
    return {
        "id": task.id,
        "kind": wish.kind,
        "state": task.state,
        "session": task.session,
        "name": session,
        "command": wish.command,
        "description": wish.description,
        "workspace": task.workspace,
        "workdir": wish.workdir,
        "created": task.created,
        "ended": task.ended,
        "exit_code": task.exit_code,
        "why": task.why,
        "address": wish.address,
        "notify": wish.notify,
        "is_told": task.is_delivered,
        "is_interactive": wish.keeps_stdin_open,
        "watch": wish.watch,
        "grants": list(wish.grants),
        "child": task.child,
        "pid": task.process.pid if task.process else None,
        "output_file": output_file if wish.kind == "command" else "",
    }


def tasks_table(tasks: Sequence[Task], names: Mapping[str, str], now: int) -> list[str]:
    """One aligned line for each, under a head."""
    rows = [("TASK", "STATE", "TIME", "EXIT", "SESSION", "WHAT")]
    rows += [
        (
            task.id,
            task.state,
            duration((task.ended or now) - task.created),
            "" if task.exit_code is None else str(task.exit_code),
            one_line(names.get(task.session, task.session), 24),
            one_line(task.spec.description or task.spec.command, _MAX_DESCRIPTION),
        )
        for task in tasks
    ]
    return format_table(rows)


def state_line(task: Task) -> str:
    """What is the matter with it, in one line."""
    code = "" if task.exit_code is None else f", exit code {task.exit_code}"
    why = f": {one_line(task.why, 200)}" if task.why else ""
    return f"task {task.id} {_STATE_TEXT[task.state]}{code}{why}"


def task_details(task: Task, session: str, output_file: str, now: int) -> list[str]:
    """All there is to say of a task but its output."""
    wish = task.spec
    span = duration((task.ended or now) - task.created)
    facts = {
        "state": f"{task.state} ({f'for {span}' if task.is_open else f'after {span}'})",
        "exit code": "" if task.exit_code is None else str(task.exit_code),
        "reason": one_line(task.why),
        "what": one_line(wish.description),
        "asked to" if wish.kind == "session" else "command": printable(wish.command),
        "session": one_line(session),
        "folder": f"{task.workspace}/{wish.workdir}" if wish.workdir else task.workspace,
        "begun": format_time(task.created),
        "ended": format_time(task.ended) if task.ended else "",
        "told": _notification_text(task),
        "watches": one_line(wish.watch),
        "input": "can be written to" if wish.keeps_stdin_open and task.is_open else "",
        "allowed": ", ".join(map(one_line, wish.grants)),
        "process": str(task.process.pid) if task.process and task.is_open else "",
        "child": task.child,
        "output": output_file if wish.kind == "command" else "",
    }
    indent = " " * 11
    lines = [f"{name:<10} " + value.replace("\n", f"\n{indent}") for name, value in facts.items() if value]
    return [f"task {task.id}", *lines]


def _notification_text(task: Task) -> str:
    """Where its end goes."""
    if not task.is_open:
        return "yes" if task.is_delivered else "no"
    if task.spec.is_awaited:
        return "a turn waits for it"
    when = {"always": "when it ends", "failures": "if it fails", "never": "nobody: look with `outrider tasks`"}
    return when[task.spec.notify]


_CHUNK_BYTES = 64 * 1024
_MAX_TAIL_BYTES = 1024 * 1024
"""Bytes looked through for the last lines."""


def stdout_writer() -> Callable[[bytes], None]:
    """Something that passes output on. A terminal gets no control character; a letter may come in two pieces."""
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode
    is_terminal = sys.stdout.isatty()

    def write(content: bytes) -> None:
        try:
            if is_terminal:
                sys.stdout.write(printable(decode(content).replace("\r\n", "\n")))
            else:
                sys.stdout.buffer.write(content)
            sys.stdout.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise Refused(f"standard output cannot be written to: {error.strerror}") from error

    return write


def last_lines(commands: Commands, task: Task, lines: int) -> tuple[bytes, int]:
    """The last lines of an output, and where it ended when they were read."""
    end = commands.size(task)
    start = max(0, end - _MAX_TAIL_BYTES)
    content = commands.read(task, start, end - start)
    return b"".join(content.splitlines(keepends=True)[-lines:]) if lines else b"", start + len(content)


def copy_output(commands: Commands, task: Task, start: int, write: Callable[[bytes], None]) -> int:
    """Pass on all that was written since; where that ends."""
    while part := commands.read(task, start, _CHUNK_BYTES):
        write(part)
        start += len(part)
    return start


_LABEL = "outrider tasks"
_JSON = click.option("--json", "is_json", is_flag=True, help="Print JSON.")
_ENDED_SHOWN = 10
_MAX_LISTED = 10_000
_POLL_INTERVAL = 0.2


def _run_with_tasks(act: Callable[[AgentApi], Awaitable[int]]) -> int:
    config = open_config()

    async def carry(halt: SignalWatch) -> int:
        async with open_tasks(config, _LABEL) as desk:
            return await act(desk)

    return run_async(carry)


def _now() -> int:
    return time.time_ns() // 1_000_000


@click.group("tasks")
def command() -> None:
    """List, show, follow, wait for, write to and kill background tasks."""


@command.command("list")
@click.option("--all", "is_all", is_flag=True, help="All of them, not only open ones and the latest others.")
@click.option("--session", "-s", default="", metavar="SESSION", help="All tasks of this session.")
@_JSON
def list_tasks(is_all: bool, session: str, is_json: bool) -> int:
    """The open tasks, then those that ended, latest first."""
    check_text(session, "--session")

    async def act(desk: AgentApi) -> int:
        found = await desk.tasks(await desk.find_by_prefix(session) if session else None, limit=_MAX_LISTED)
        ended = [task for task in found if not task.is_open]
        shown = ended if is_all or session else ended[:_ENDED_SHOWN]
        tasks = [*(task for task in found if task.is_open), *shown]
        names = {id: await _session_name(desk, id) for id in {task.session for task in tasks}}
        if is_json:
            rows = [render_task(task, names[task.session], desk.commands.output_file(task)) for task in tasks]
            print_line(encode_json(rows, is_pretty=True))
        elif tasks:
            print_line("\n".join(tasks_table(tasks, names, _now())))
        else:
            print_line("there are no tasks")
        if len(ended) > len(shown) and not is_json:
            warn(f"{len(ended) - len(shown)} more have ended: outrider tasks list --all")
        return DONE

    return _run_with_tasks(act)


async def _session_name(desk: AgentApi, session: str) -> str:
    try:
        return (await desk.find(session)).name
    except Refused:  # it was deleted meanwhile
        return session


@command.command("show")
@click.argument("task")
@_JSON
def show(task: str, is_json: bool) -> int:
    """All about a task, and the end of its output."""
    check_text(task, "the task's id")

    async def act(desk: AgentApi) -> int:
        found = await desk.find_task(task)
        name, file = await _session_name(desk, found.session), desk.commands.output_file(found)
        output = await _output_tail(desk, found)
        if is_json:
            print_line(encode_json({**render_task(found, name, file), "output": output}, is_pretty=True))
        else:
            print_line("\n".join([*task_details(found, name, file, _now()), "", *map(printable, quoted_tail(output))]))
        return DONE

    return _run_with_tasks(act)


async def _output_tail(desk: AgentApi, task: Task) -> str:
    if task.spec.kind == "session":
        return await last_reply_text(desk, task)
    try:
        content = await anyio.to_thread.run_sync(desk.commands.read, task, -4_000, 4_000)
    except Refused:  # it never started, or what it wrote is no longer kept
        return ""
    return content.decode("utf-8", "replace")


@command.command("tail")
@click.argument("task")
@click.option("--follow", "-f", "is_following", is_flag=True, help="Go on until the task has ended.")
@click.option("--lines", "-n", type=click.IntRange(0, 1_000_000), default=20, show_default=True)
def tail(task: str, is_following: bool, lines: int) -> int:
    """The end of a task's output. With -f also what comes; exits with 0 when the task has ended, however it did."""
    check_text(task, "the task's id")
    config = open_config()

    async def carry(halt: SignalWatch) -> int:
        async with open_tasks(config, _LABEL) as desk:
            found = await desk.find_task(task)
        if found.spec.kind == "command":
            return await _tail_command(config, found, lines, is_following)
        if is_following and found.is_open:
            found = await _wait_for_end(config, found, None)
        async with open_tasks(config, _LABEL) as desk:
            if words := await last_reply_text(desk, found):
                print_line(words)
        return DONE

    return run_async(carry)


async def _tail_command(config: Config, task: Task, lines: int, is_following: bool) -> int:
    commands, write = open_commands(config), stdout_writer()
    shown, end = last_lines(commands, task, lines)
    write(shown)
    if not is_following or not task.is_open:
        return DONE
    while not await command_ended(commands, task, _POLL_INTERVAL):
        end = copy_output(commands, task, end, write)
    copy_output(commands, task, end, write)
    async with open_tasks(config, _LABEL) as desk:
        warn(state_line(await reconcile_task(desk, task)))
    return DONE


@command.command("wait")
@click.argument("task")
@click.option("--timeout", type=click.FloatRange(0), metavar="SECONDS", help="Give up waiting after so long.")
@_JSON
def wait(task: str, timeout: float | None, is_json: bool) -> int:
    """Wait until a task has ended, and print the end of its output.

    Exits with 0 when it succeeded, 1 when it did not, 75 when the time ran out first.
    """
    check_text(task, "the task's id")
    config = open_config()

    async def carry(halt: SignalWatch) -> int:
        async with open_tasks(config, _LABEL) as desk:
            found = await desk.find_task(task)
        if found.is_open:
            found = await _wait_for_end(config, found, timeout)
        async with open_tasks(config, _LABEL) as desk:
            output = await _output_tail(desk, found)
            if is_json:
                name, file = await _session_name(desk, found.session), desk.commands.output_file(found)
                print_line(encode_json({**render_task(found, name, file), "output": output}))
            elif not found.is_open and output:
                print_line(output.removesuffix("\n"))
        warn(state_line(found))
        if found.is_open:
            return LATER
        return DONE if found.state == "succeeded" else FAILED

    return run_async(carry)


async def _wait_for_end(config: Config, task: Task, seconds: float | None) -> Task:
    """This task once it has ended, or when the time has run out. Nothing of the home is held meanwhile."""
    commands = open_commands(config)
    with anyio.move_on_after(seconds):
        while task.is_open and not (task.spec.kind == "command" and await command_ended(commands, task, 60)):
            async with open_tasks(config, _LABEL) as desk:
                task = await desk.find_task(task.id)
                if task.is_open and task.spec.kind == "session" and owns_home(desk):
                    raise Refused(f"task {task.id} is a session that nothing carries on now: outrider resume")
            await anyio.sleep(_POLL_INTERVAL)
    async with open_tasks(config, _LABEL) as desk:
        return await reconcile_task(desk, task)


@command.command("write")
@click.argument("task")
@click.argument("text", nargs=-1)
@click.option("--close", "is_last", is_flag=True, help="Then let it see the end of its input (Ctrl-D).")
@click.option("--no-newline", "is_bare", is_flag=True, help="Do not end the text with a newline.")
@click.option("--ctrl-c", "is_interrupt", is_flag=True, help="Then interrupt it, as Ctrl-C does.")
def write(task: str, text: tuple[str, ...], is_last: bool, is_bare: bool, is_interrupt: bool) -> int:
    """Give a task something to read. Only tasks that were started to be written to take it."""
    words = check_text(" ".join(text), "the text")
    content = (words if is_bare or not text else f"{words}\n").encode()
    if not content and not is_last and not is_interrupt:
        raise Refused("there is nothing to write: say a text, --close or --ctrl-c")

    async def act(desk: AgentApi) -> int:
        found = await desk.find_task(check_text(task, "the task's id"))
        if not found.is_open:
            raise Refused(state_line(found))
        if found.spec.kind == "session":
            raise Refused(f"task {found.id} is a session; say it there: outrider run --session …")
        if content or is_last:
            await anyio.to_thread.run_sync(lambda: desk.commands.write(found, content, close=is_last))
        if is_interrupt:
            await anyio.to_thread.run_sync(desk.commands.interrupt, found)
        done = [f"wrote {len(content):,} bytes"] * bool(content)
        done += ["closed its input"] * is_last + ["interrupted it"] * is_interrupt
        print_line(f"task {found.id}: {', '.join(done)}")
        return DONE

    return _run_with_tasks(act)


@command.command("kill")
@click.argument("tasks", nargs=-1, required=True, metavar="TASK...")
def kill(tasks: tuple[str, ...]) -> int:
    """End tasks and all they started. They are gone when this returns."""

    async def act(desk: AgentApi) -> int:
        found = [await desk.find_task(check_text(name, "the task's id")) for name in tasks]
        for task in found:
            if not task.is_open:
                warn(f"{state_line(task)}: there is nothing to kill")
                continue
            killed = await desk.kill_task(task)
            print_line(f"{state_line(killed)} ({one_line(task.spec.description or task.spec.command, 60)})")
        return DONE

    return _run_with_tasks(act)
