"""`outrider tasks`: looks after background work, also while another process uses the home. None of it holds the home
for longer than a moment: whoever waits, waits beside it."""

import time
from collections.abc import Awaitable, Callable

import anyio
import anyio.to_thread
import click

from outrider.app.acting import ReadOnlyApi
from outrider.app.tasks import open_commands
from outrider.cli.lines import encode_json
from outrider.cli.opening import SignalWatch, open_config, run_async
from outrider.cli.plain import check_text, one_line, print_line, printable, warn
from outrider.cli.root import DONE, FAILED, LATER
from outrider.cli.task_desk import command_ended, last_reply_text, open_tasks, owns_home, reconcile_task
from outrider.cli.task_lines import render_task, state_line, task_details, tasks_table
from outrider.cli.task_output import copy_output, last_lines, stdout_writer
from outrider.config.load import Config
from outrider.core.errors import Refused
from outrider.core.tasks import Task, quoted_tail

_LABEL = "outrider tasks"
_JSON = click.option("--json", "is_json", is_flag=True, help="Print JSON.")
_ENDED_SHOWN = 10
_MAX_LISTED = 10_000
_POLL_INTERVAL = 0.2


def _run_with_tasks(act: Callable[[ReadOnlyApi], Awaitable[int]]) -> int:
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

    async def act(desk: ReadOnlyApi) -> int:
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


async def _session_name(desk: ReadOnlyApi, session: str) -> str:
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

    async def act(desk: ReadOnlyApi) -> int:
        found = await desk.find_task(task)
        name, file = await _session_name(desk, found.session), desk.commands.output_file(found)
        output = await _output_tail(desk, found)
        if is_json:
            print_line(encode_json({**render_task(found, name, file), "output": output}, is_pretty=True))
        else:
            print_line("\n".join([*task_details(found, name, file, _now()), "", *map(printable, quoted_tail(output))]))
        return DONE

    return _run_with_tasks(act)


async def _output_tail(desk: ReadOnlyApi, task: Task) -> str:
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

    async def act(desk: ReadOnlyApi) -> int:
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

    async def act(desk: ReadOnlyApi) -> int:
        found = [await desk.find_task(check_text(name, "the task's id")) for name in tasks]
        for task in found:
            if not task.is_open:
                warn(f"{state_line(task)}: there is nothing to kill")
                continue
            killed = await desk.kill_task(task)
            print_line(f"{state_line(killed)} ({one_line(task.spec.description or task.spec.command, 60)})")
        return DONE

    return _run_with_tasks(act)
