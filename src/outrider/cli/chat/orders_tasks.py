"""What the /commands about tasks, questions and grants do in the terminal."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from anyio.to_thread import run_sync

from outrider.cli.chat.calls import last_lines
from outrider.cli.chat.clean import sanitize_line
from outrider.cli.chat.running import describe_state, read_tail
from outrider.cli.chat.shows import DisplayItem, Note, OutputLines
from outrider.cli.chat.status import short_path
from outrider.cli.chat.table import two_columns
from outrider.cli.transcript import time_ago
from outrider.core.approve import NO, ONCE
from outrider.core.errors import Refused
from outrider.core.tasks import Task, duration, task_label

if TYPE_CHECKING:
    from outrider.cli.chat.talk import ChatConversation

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
    chat.add_suggestions({"grant": [(f"forget {grant.id}", grant.need) for grant in found]})
    verb, _, name = argument.partition(" ")
    if verb == "forget" and name:
        if await chat.agent.revoke_permission(name.strip()):
            return [Note(f"{sanitize_line(name)} is taken back: it will be asked for again", "good")]
        raise Refused(f"there is no grant {sanitize_line(name)!r}; /grants lists them")
    if argument:
        raise Refused("say /grants, or /grants forget GRANT")
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
