"""The built-in tool `shell`. Every command is a task: the call waits for it up to a timeout.

A command that takes longer continues in the background. One that only sleeps is refused in the foreground: there are
better ways to wait.
"""

import re
from collections.abc import Mapping
from typing import Annotated

import anyio.to_thread
import msgspec
from msgspec import Meta, Struct

from outrider.core.approvals import HOST, NETWORK, ApprovalRequest, RequestDetail
from outrider.core.errors import Refused
from outrider.core.events import Result
from outrider.core.ports import Tasks, ToolContext
from outrider.core.tasks import Notify, Task, TaskSpec
from outrider.core.text import duration
from outrider.core.types import Replay
from outrider.system.regex import check_pattern
from outrider.tools.define import result, tool
from outrider.tools.sleep_commands import sleep_seconds

HEAD, TAIL = 6_000, 14_000
MAX_TIMEOUT = 600


class ShellCall(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arguments of `shell`."""

    command: Annotated[str, Meta(description="the command line, run by /bin/sh in the workspace", min_length=1)]
    description: Annotated[str, Meta(description="what it is for, in a few words")] = ""
    timeout: Annotated[
        int, Meta(description="seconds to wait for it (default 30); then it continues in the background", ge=0, le=600)
    ] = 0
    background: Annotated[bool, Meta(description="do not wait for it: servers, builds, long tests")] = False
    notify: Annotated[
        Notify,
        Meta(description="when to get a notice that a background command has ended or waits for input"),
    ] = "always"
    watch: Annotated[
        str,
        Meta(description="a regular expression; while it runs in the background, matching output lines cause a notice"),
    ] = ""
    workdir: Annotated[str, Meta(description="a folder of the workspace to run it in")] = ""
    stdin: Annotated[str, Meta(description="text for its stdin")] = ""
    interactive: Annotated[bool, Meta(description="keep its stdin open, to write to it with the tasks tool")] = False
    needs: Annotated[
        tuple[str, ...],
        Meta(
            description="what it needs outside its sandbox: network, read:/path, write:/path. The person is asked first"
        ),
    ] = ()
    why: Annotated[str, Meta(description="why it needs that, for the person")] = ""


class ShellResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of a command as the model reads it."""

    status: str
    task: str = ""
    exit_code: int | None = None
    reason: str = ""
    output: str | None = None
    output_file: str = ""
    notify: bool | None = None
    message: str = ""


@tool(replay=Replay.NEVER)
async def shell(context: ToolContext, arguments: ShellCall) -> Result:
    """Run a command in the workspace. Waits for it up to `timeout` seconds; a command that takes longer is not killed
    but continues as a background task. The result is JSON: status, task, exit_code, output and what to do next."""
    return await _run(context, _tasks(context), arguments)


@shell.reconciles
async def _resume(context: ToolContext, arguments: ShellCall) -> Result:
    # The task is found by the id of its call, running or ended. If there is none, it never started.
    return await _run(context, _tasks(context), arguments)


@shell.requests_approval
async def _approval_request(context: ToolContext, arguments: ShellCall) -> ApprovalRequest:
    await _check(arguments)
    traits = await _tasks(context).traits()
    if traits.refusal:
        raise Refused(traits.refusal)
    needs = [need for need in dict.fromkeys(arguments.needs) if not (need == NETWORK and traits.has_network)]
    for need in needs:
        if need != NETWORK and not re.match(r"^(read|write):/", need):
            raise Refused(f"{need!r} is not a need; use network, read:/path or write:/path")
    if traits.is_unconfined:
        needs = []
    if needs:
        resolve = _tasks(context).commands.resolve_needs
        needs = [*await anyio.to_thread.run_sync(resolve, context.session, tuple(needs))]
    if not traits.has_sandbox:
        needs.append(HOST)
    workspace, details = context.session.workspace, _details(arguments)
    return ApprovalRequest("shell", arguments.command, tuple(needs), workspace, arguments.why, details)


def _details(arguments: ShellCall) -> tuple[RequestDetail, ...]:
    """What is run besides the command line. A person sees all of it."""
    details: list[RequestDetail] = []
    if arguments.workdir:
        details.append(RequestDetail("In the folder", arguments.workdir))
    if arguments.stdin:
        details.append(RequestDetail("With this stdin", arguments.stdin))
    if arguments.interactive:
        details.append(RequestDetail("Its stdin stays open for later input"))
    return tuple(details)


def _tasks(context: ToolContext) -> Tasks:
    if context.tasks is None:
        raise Refused("commands are not available here")
    return context.tasks


async def _check(arguments: ShellCall) -> None:
    if not arguments.background and sleep_seconds(arguments.command) >= 2:
        raise Refused(
            "not run: a command that only sleeps must run in the background. To wait for a task, use the tasks tool"
        )
    if arguments.watch:
        try:
            await check_pattern(arguments.watch)
        except Refused as error:
            raise Refused(f"watch: {error}") from None
    if "\0" in arguments.command:
        raise Refused("a command cannot contain a NUL character")
    if arguments.stdin and arguments.interactive:
        raise Refused(
            "use either stdin or interactive: what an interactive command reads is written with the tasks tool"
        )


async def _run(context: ToolContext, tasks: Tasks, arguments: ShellCall) -> Result:
    can_notify = context.delivery.can_deliver
    traits = await tasks.traits()
    task = await tasks.start(
        TaskSpec(
            kind="command",
            call=context.call,
            command=arguments.command,
            description=arguments.description,
            address=context.address,
            notify=arguments.notify if arguments.background and can_notify else "never",
            is_awaited=not arguments.background,
            watch=arguments.watch if can_notify else "",
            ceiling=traits.ceiling,
            workdir=arguments.workdir,
            stdin=arguments.stdin or None,
            keeps_stdin_open=arguments.interactive,
            grants=context.granted,
        )
    )
    # A call that continues after a crash keeps what it promised, wherever the turn answers to by now.
    can_notify = can_notify and task.spec.address == context.address
    if arguments.background:
        return _render(_started(tasks, task, arguments, context), "in the background")
    seconds = float(min(arguments.timeout or traits.timeout, MAX_TIMEOUT))
    task = await tasks.wait(task, seconds)
    if task.is_open:
        task = await tasks.detach(task, "always" if can_notify else "never")
    if task.is_open:
        return _render(await _detached(tasks, task, can_notify, seconds), "continues in the background")
    return await finished_result(tasks, task)


def _started(tasks: Tasks, task: Task, arguments: ShellCall, context: ToolContext) -> ShellResult:
    will_notify = task.spec.notify != "never"
    if will_notify and not task.is_open:
        message = "It has already ended; a notice says how."
    elif will_notify:
        message = "It is running. You will get a notice when it has ended; do not wait for it."
    elif arguments.notify == "never":
        watched = " You will get a notice of lines that match its pattern." if task.spec.watch else ""
        message = f"It is running. Check it with the tasks tool.{watched}"
    else:
        why = context.delivery.why or "it was started where nothing can be delivered later"
        message = f"It is running, but there will be no notice: {why}. Poll it with tasks(action=wait or read)."
    return ShellResult(
        status="background_started",
        task=task.id,
        output_file=tasks.commands.output_file(task),
        notify=will_notify,
        message=message,
    )


async def _detached(tasks: Tasks, task: Task, can_notify: bool, seconds: float) -> ShellResult:
    notice = (
        "You will get a notice when it ends." if can_notify else "There will be no notice: poll it with the tasks tool."
    )
    return ShellResult(
        status="auto_backgrounded",
        task=task.id,
        output=await output_of(tasks, task),
        output_file=tasks.commands.output_file(task),
        notify=can_notify,
        message=f"It did not end within {seconds:g} s and continues as task {task.id}; no work was lost. {notice}",
    )


async def finished_result(tasks: Tasks, task: Task) -> Result:
    """The result of a command that has ended."""
    output = await output_of(tasks, task)
    hint = ""
    if task.exit_code:
        outside = await anyio.to_thread.run_sync(tasks.commands.outside_git_folders, task)
        hint = outside_git_hint(output, outside) or git_hint(output, task.workspace)
    outcome = ShellResult(
        status="done" if task.state in ("succeeded", "failed") else task.state,
        task=task.id,
        exit_code=task.exit_code,
        reason=task.why,
        output=output,
        output_file=tasks.commands.output_file(task),
        message=hint,
    )
    code = "" if task.exit_code is None else f"exit {task.exit_code}, "
    return _render(
        outcome, f"{code}{duration(task.ended - task.created)}", failed=task.state not in ("succeeded", "failed")
    )


def git_hint(output: str, workspace: str) -> str:
    """What to do when a command failed because git's settings or hooks are protected; empty for another output."""
    is_refused = any(words in output for words in ("Device or resource busy", "Read-only file system"))
    if not is_refused or not any(words in output for words in (".git", "config file", "hooks")):
        return ""
    return (
        "Git's settings and hooks are read-only here, since they run for the person later; the rest of git works. "
        f"If this change is needed, run the command again with needs=['write:{workspace}/.git'], and say why."
    )


def outside_git_hint(output: str, folders: Mapping[str, str]) -> str:
    """What to do when a command failed because a work tree's git folder is outside; empty for another output."""
    named = [folder for git, folder in folders.items() if folder in output or f"{git}/" in output]
    is_refused = any(words in output for words in ("Read-only file system", "Permission denied"))
    if not (named and is_refused) and not (folders and "not a git repository" in output):
        return ""
    folder = [*named, *folders.values()][0]
    return (
        f"The git folder of this work tree is outside the workspace: {folder}. To use git here, run the command again "
        f"with needs=['read:{folder}'] to look only, or with needs=['write:{folder}'] to commit, and say why."
    )


async def output_of(tasks: Tasks, task: Task) -> str:
    """The output of a command: all of it, or its head and tail with a line that says what is missing."""

    def read() -> str:
        size = tasks.commands.size(task)
        if size <= HEAD + TAIL:
            return tasks.commands.read(task, 0, HEAD + TAIL).decode("utf-8", "replace")
        head = tasks.commands.read(task, 0, HEAD).decode("utf-8", "replace")
        tail = tasks.commands.read(task, -TAIL, TAIL).decode("utf-8", "replace")
        left_out = f"[… {size - HEAD - TAIL:,} of {size:,} bytes left out; read them with tasks(action=read) …]"
        return f"{head}\n{left_out}\n{tail}"

    return await anyio.to_thread.run_sync(read)


def _render(outcome: ShellResult, details: str, *, failed: bool = False) -> Result:
    return result(msgspec.json.encode(outcome).decode(), details, failed=failed)
