"""`outrider tasks`: list, show, follow, wait for, write to and kill background tasks.

Every command works while another process owns the home, and none holds the home while it waits. The end of a command is
recorded, but no turn starts here: a notice waits until its session next runs.
"""

import codecs
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

import anyio
import click

from outrider.app.api import AgentApi
from outrider.app.child_sessions import open_commands
from outrider.cli.commands import DONE, FAILED, JSON_OPTION, TRY_AGAIN
from outrider.cli.output import (
    check_text,
    checked_stdout,
    format_table,
    format_time,
    now_ms,
    one_line,
    print_json,
    print_line,
    printable,
    warn,
)
from outrider.cli.setup import open_config, open_read_only, run_async
from outrider.config.schema import Config
from outrider.core.errors import Refused
from outrider.core.events import Json, Reply
from outrider.core.ports import Commands
from outrider.core.tasks import Task, TaskState, quoted_tail, task_label
from outrider.core.text import duration, escape_invisible

_LABEL = "outrider tasks"
_MAX_ENDED = 10
_MAX_TASKS = 10_000
_POLL_INTERVAL = 0.2
_RECORD_TIMEOUT = 10.0
"""Seconds within which an end that is known on disk is recorded in the store."""


@asynccontextmanager
async def open_tasks(config: Config) -> AsyncGenerator[AgentApi]:
    """Open the tasks of a home, in it or through its owner. Ends that nobody recorded yet are recorded first."""
    async with open_read_only(config, _LABEL) as agent:
        if owns_home(agent):
            for task in await agent.tasks(open_only=True, limit=_MAX_TASKS):
                if task.spec.kind == "command":
                    await reconcile_task(agent, task)
        yield agent


def owns_home(agent: AgentApi) -> bool:
    """Whether this process owns the home, so that no turn is running in it."""
    return not agent.is_client


async def last_reply_text(agent: AgentApi, task: Task) -> str:
    """The last reply of the child session that this task runs."""
    journal = await agent.journal(await agent.find(task.child)) if task.child else ()
    replies = [entry.body for entry in journal if isinstance(entry.body, Reply)]
    return next((reply.text for reply in reversed(replies) if reply.text), "")


async def reconcile_task(agent: AgentApi, task: Task) -> Task:
    """The task after an end that is known on disk was recorded in the store."""
    task = await agent.find_task(task.id)
    if not task.is_open or not await command_ended(agent.commands, task):
        return task
    return await agent.wait_task(task, _RECORD_TIMEOUT)


async def command_ended(commands: Commands, task: Task, seconds: float = 0.0) -> bool:
    """Whether the disk says that this command has ended, after waiting for that up to `seconds`."""
    if task.process is None:
        await anyio.sleep(seconds)
        return False
    with anyio.move_on_after(seconds):
        await commands.wait_for_end(task)
    return commands.has_ended(task)


_STATE_TEXT: dict[TaskState, str] = {
    "succeeded": "succeeded",
    "failed": "failed",
    "killed": "was killed",
    "lost": "was lost",
    "timed_out": "reached its time limit",
    "stalled": "seems to be waiting for input",
    "queued": "is still queued",
    "running": "is still running",
}


def render_task(task: Task, session: str, output_file: str) -> Json:
    """A task as a flat JSON object. `session` is the name of its session."""
    spec = task.spec
    return {
        "id": task.id,
        "kind": spec.kind,
        "state": task.state,
        "session": task.session,
        "name": session,
        "command": spec.command,
        "description": spec.description,
        "workspace": task.workspace,
        "workdir": spec.workdir,
        "created": task.created,
        "ended": task.ended,
        "exit_code": task.exit_code,
        "why": task.why,
        "address": spec.address,
        "notify": spec.notify,
        "is_told": task.is_delivered,
        "is_interactive": spec.keeps_stdin_open,
        "watch": spec.watch,
        "grants": list(spec.grants),
        "child": task.child,
        "pid": task.process.pid if task.process else None,
        "output_file": output_file if spec.kind == "command" else "",
    }


def tasks_table(tasks: Sequence[Task], session_names: Mapping[str, str], now: int) -> list[str]:
    rows = [("TASK", "STATE", "TIME", "EXIT", "SESSION", "WHAT")]
    rows += [
        (
            task.id,
            task.state,
            duration((task.ended or now) - task.created),
            "" if task.exit_code is None else str(task.exit_code),
            one_line(session_names.get(task.session, task.session), 24),
            one_line(task_label(task)),
        )
        for task in tasks
    ]
    return format_table(rows)


def state_line(task: Task) -> str:
    """The state of a task in one line, with its exit code and the reason why it ended."""
    code = "" if task.exit_code is None else f", exit code {task.exit_code}"
    why = f": {one_line(task.why, 200)}" if task.why else ""
    return f"task {task.id} {_STATE_TEXT[task.state]}{code}{why}"


def task_details(task: Task, session: str, output_file: str, now: int) -> list[str]:
    """Everything about a task except its output."""
    spec = task.spec
    span = duration((task.ended or now) - task.created)
    facts = {
        "state": f"{task.state} ({f'for {span}' if task.is_open else f'after {span}'})",
        "exit code": "" if task.exit_code is None else str(task.exit_code),
        "reason": one_line(task.why),
        "what": one_line(spec.description),
        "prompt" if spec.kind == "session" else "command": escape_invisible(spec.command),
        "session": one_line(session),
        "folder": f"{task.workspace}/{spec.workdir}" if spec.workdir else task.workspace,
        "started": format_time(task.created),
        "ended": format_time(task.ended) if task.ended else "",
        "notice": _notice_text(task),
        "watches": one_line(spec.watch),
        "input": "open" if spec.keeps_stdin_open and task.is_open else "",
        "allowed": ", ".join(map(one_line, spec.grants)),
        "process": str(task.process.pid) if task.process and task.is_open else "",
        "child": task.child,
        "output": output_file if spec.kind == "command" else "",
    }
    indent = " " * 11
    lines = [f"{name:<10} " + value.replace("\n", f"\n{indent}") for name, value in facts.items() if value]
    return [f"task {task.id}", *lines]


def _notice_text(task: Task) -> str:
    """When its session is notified."""
    if not task.is_open:
        return "delivered" if task.is_delivered else "none was sent"
    if task.spec.is_awaited:
        return "none: a turn waits for it"
    texts = {"always": "when it ends", "failures": "if it fails", "never": "none: check it with `outrider tasks`"}
    return texts[task.spec.notify]


_CHUNK_BYTES = 64 * 1024
_MAX_TAIL_BYTES = 1024 * 1024
"""Bytes searched for the last lines."""


def stdout_writer() -> Callable[[bytes], None]:
    """A function that copies output to stdout: the bytes to a pipe, printable text to a terminal.

    A character may be split between two calls.
    """
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode
    is_terminal = sys.stdout.isatty()

    def write(content: bytes) -> None:
        with checked_stdout():
            if is_terminal:
                sys.stdout.write(printable(decode(content).replace("\r\n", "\n")))
            else:
                sys.stdout.buffer.write(content)
            sys.stdout.flush()

    return write


def last_lines(commands: Commands, task: Task, lines: int) -> tuple[bytes, int]:
    """The last lines of an output, and the offset at which they end."""
    end = commands.size(task)
    start = max(0, end - _MAX_TAIL_BYTES)
    content = commands.read(task, start, end - start)
    return b"".join(content.splitlines(keepends=True)[-lines:]) if lines else b"", start + len(content)


def copy_output(commands: Commands, task: Task, start: int, write: Callable[[bytes], None]) -> int:
    """Write the output from this offset on, and return the offset of its end."""
    while part := commands.read(task, start, _CHUNK_BYTES):
        write(part)
        start += len(part)
    return start


def _run_with_tasks(act: Callable[[AgentApi], Awaitable[None]]) -> int:
    config = open_config()

    async def run() -> None:
        async with open_tasks(config) as agent:
            await act(agent)

    return run_async(run)


@click.group("tasks")
def command() -> None:
    """List, show, follow, wait for, write to and kill background tasks.

    TASK is a task's id, or at least its first six characters.
    """


@command.command("list")
@click.option("--all", "is_all", is_flag=True, help="List all ended tasks, not only the latest ten.")
@click.option("--session", "-s", default="", metavar="SESSION", help="List all tasks of this session.")
@JSON_OPTION
def list_tasks(is_all: bool, session: str, is_json: bool) -> int:
    """List open tasks, then ended ones, most recent first."""
    check_text(session, "--session")

    async def act(agent: AgentApi) -> None:
        tasks = await agent.tasks(await agent.find_by_prefix(session) if session else None, limit=_MAX_TASKS)
        ended = [task for task in tasks if not task.is_open]
        left_out = 0 if is_all or session else max(0, len(ended) - _MAX_ENDED)
        tasks = [*(task for task in tasks if task.is_open), *ended[: len(ended) - left_out]]
        names = {id: await _session_name(agent, id) for id in {task.session for task in tasks}}
        if is_json:
            rows = [render_task(task, names[task.session], agent.commands.output_file(task)) for task in tasks]
            print_json(rows, is_pretty=True)
        elif tasks:
            print_line("\n".join(tasks_table(tasks, names, now_ms())))
        else:
            print_line("no tasks")
        if left_out and not is_json:
            warn(f"{left_out} more have ended: outrider tasks list --all")

    return _run_with_tasks(act)


async def _session_name(agent: AgentApi, session: str) -> str:
    try:
        return (await agent.find(session)).name
    except Refused:  # The session was deleted.
        return session


@command.command("show")
@click.argument("task")
@JSON_OPTION
def show(task: str, is_json: bool) -> int:
    """Show the details of a task and the end of its output."""
    check_text(task, "the task's id")

    async def act(agent: AgentApi) -> None:
        row = await agent.find_task(task)
        name, file = await _session_name(agent, row.session), agent.commands.output_file(row)
        output = await _output_tail(agent, row)
        if is_json:
            print_json({**render_task(row, name, file), "output": output}, is_pretty=True)
        else:
            print_line("\n".join([*task_details(row, name, file, now_ms()), "", *map(printable, quoted_tail(output))]))

    return _run_with_tasks(act)


async def _output_tail(agent: AgentApi, task: Task) -> str:
    if task.spec.kind == "session":
        return await last_reply_text(agent, task)
    try:
        content = await anyio.to_thread.run_sync(agent.commands.read, task, -4_000, 4_000)
    except Refused:  # It never started, or its output was removed.
        return ""
    return content.decode("utf-8", "replace")


@command.command("tail")
@click.argument("task")
@click.option("--follow", "-f", "is_following", is_flag=True, help="Keep printing until the task has ended.")
@click.option(
    "--lines", "-n", type=click.IntRange(0, 1_000_000), default=20, show_default=True, help="Print this many lines."
)
def tail(task: str, is_following: bool, lines: int) -> int:
    """Print the end of a task's output.

    With -f, exits when the task has ended; the exit code is 0 even if the task failed.
    """
    check_text(task, "the task's id")
    config = open_config()

    async def act() -> None:
        async with open_tasks(config) as agent:
            row = await agent.find_task(task)
        if row.spec.kind == "command":
            await _tail_command(config, row, lines, is_following)
            return
        if is_following and row.is_open:
            row = await _wait_for_end(config, row, None)
        async with open_tasks(config) as agent:
            if text := await last_reply_text(agent, row):
                print_line(text)

    return run_async(act)


async def _tail_command(config: Config, task: Task, lines: int, is_following: bool) -> None:
    commands, write = open_commands(config), stdout_writer()
    content, end = last_lines(commands, task, lines)
    write(content)
    if not is_following or not task.is_open:
        return
    while not await command_ended(commands, task, _POLL_INTERVAL):
        end = copy_output(commands, task, end, write)
    copy_output(commands, task, end, write)
    async with open_tasks(config) as agent:
        warn(state_line(await reconcile_task(agent, task)))


@command.command("wait")
@click.argument("task")
@click.option("--timeout", type=click.FloatRange(0), metavar="SECONDS", help="Stop waiting after this time.")
@JSON_OPTION
def wait(task: str, timeout: float | None, is_json: bool) -> int:
    """Wait until a task has ended and print the end of its output.

    Exits with 0 if the task succeeded, 1 if it did not, and 75 if it has not ended within the timeout.
    """
    check_text(task, "the task's id")
    config = open_config()

    async def act() -> int:
        async with open_tasks(config) as agent:
            row = await agent.find_task(task)
        if row.is_open:
            row = await _wait_for_end(config, row, timeout)
        async with open_tasks(config) as agent:
            output = await _output_tail(agent, row)
            if is_json:
                name, file = await _session_name(agent, row.session), agent.commands.output_file(row)
                print_json({**render_task(row, name, file), "output": output})
            elif not row.is_open and output:
                print_line(output.removesuffix("\n"))
        warn(state_line(row))
        if row.is_open:
            return TRY_AGAIN
        return DONE if row.state == "succeeded" else FAILED

    return run_async(act)


async def _wait_for_end(config: Config, task: Task, seconds: float | None) -> Task:
    """The task when it has ended or the time is up. The home is not held meanwhile."""
    commands = open_commands(config)
    with anyio.move_on_after(seconds):
        while task.is_open and not (task.spec.kind == "command" and await command_ended(commands, task, 60)):
            async with open_tasks(config) as agent:
                task = await agent.find_task(task.id)
                if task.is_open and task.spec.kind == "session" and owns_home(agent):
                    raise Refused(f"task {task.id} is a child session and is not running; to continue: outrider resume")
            await anyio.sleep(_POLL_INTERVAL)
    async with open_tasks(config) as agent:
        return await reconcile_task(agent, task)


@command.command("write")
@click.argument("task")
@click.argument("text", nargs=-1)
@click.option("--close", "is_last", is_flag=True, help="Then close its input (as Ctrl-D does).")
@click.option("--no-newline", "is_bare", is_flag=True, help="Do not append a newline.")
@click.option("--ctrl-c", "is_interrupt", is_flag=True, help="Then interrupt it (as Ctrl-C does).")
def write(task: str, text: tuple[str, ...], is_last: bool, is_bare: bool, is_interrupt: bool) -> int:
    """Write a line to the input of an interactive task."""
    line = check_text(" ".join(text), "the text")
    content = (line if is_bare or not text else f"{line}\n").encode()
    if not content and not is_last and not is_interrupt:
        raise Refused("there is nothing to write: give TEXT, --close or --ctrl-c")

    async def act(agent: AgentApi) -> None:
        row = await agent.find_task(check_text(task, "the task's id"))
        if not row.is_open:
            raise Refused(f"{state_line(row)}; an ended task takes no input")
        if row.spec.kind == "session":
            raise Refused(f"task {row.id} is a child session; send it a message instead: outrider run --session …")
        if content or is_last:
            await anyio.to_thread.run_sync(lambda: agent.commands.write(row, content, close=is_last))
            await agent.refresh_task(row)
        if is_interrupt:
            await anyio.to_thread.run_sync(agent.commands.interrupt, row)
        actions = [f"wrote {len(content):,} bytes"] * bool(content)
        actions += ["closed its input"] * is_last + ["interrupted it"] * is_interrupt
        print_line(f"task {row.id}: {', '.join(actions)}")

    return _run_with_tasks(act)


@command.command("kill")
@click.argument("tasks", nargs=-1, required=True, metavar="TASK...")
def kill(tasks: tuple[str, ...]) -> int:
    """Kill tasks and all their processes, and wait until they have ended."""

    async def act(agent: AgentApi) -> None:
        rows = [await agent.find_task(check_text(name, "the task's id")) for name in tasks]
        for task in rows:
            if not task.is_open:
                warn(f"{state_line(task)}; nothing to kill")
                continue
            killed = await agent.kill_task(task)
            print_line(f"{state_line(killed)} ({one_line(task_label(task))})")

    return _run_with_tasks(act)
