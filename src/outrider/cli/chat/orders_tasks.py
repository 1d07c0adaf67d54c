"""What the /commands about tasks, questions and grants do in the terminal."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from anyio.to_thread import run_sync

from outrider.cli.chat.calls import last_lines
from outrider.cli.chat.clean import one_line
from outrider.cli.chat.running import read_tail, state_words
from outrider.cli.chat.shows import Note, Output, Show
from outrider.cli.chat.status import short_path
from outrider.cli.chat.table import table
from outrider.cli.transcript import time_ago
from outrider.core.approve import NO, ONCE
from outrider.core.errors import Refused
from outrider.core.tasks import Task, duration, task_label

if TYPE_CHECKING:
    from outrider.cli.chat.talk import Conversation

_ENDED = 10
"""Tasks that have ended are listed up to so many."""
_SHOWN = 20
"""Lines of a task's output."""


async def stop(chat: "Conversation", argument: str) -> Sequence[Show]:
    everything = argument.lower() == "all"
    if chat.session and await chat.agent.stop(chat.session, tasks=everything):
        if everything:  # Nor is the model to begin anew because it was told that its tasks are gone.
            await chat.agent.stop(chat.session)
        return []
    hint = f"; /stop all ends its {chat.running.count} in the background" if chat.running.count else ""
    return [Note(f"nothing runs in this session{hint}")]


async def tasks(chat: "Conversation", name: str) -> Sequence[Show]:
    if name:
        return await _task(chat, await chat.agent.find_task(name))
    everything = await chat.agent.tasks()
    here = chat.session.id if chat.session else ""
    own = [task for task in everything if task.session == here]
    ended = [task for task in own if not (task.is_open or task.spec.is_awaited)]
    shown = [*(task for task in own if task.is_open), *ended[:_ENDED]]
    others = [task for task in everything if task.is_open and task.session != here]
    chat.know({"task": [(task.id, one_line(task_label(task), 40)) for task in (*shown, *others)]})
    if not shown and not others:
        return [Note("there are no tasks; the agent begins them with commands that take long")]
    shows: list[Show] = [table(_rows(shown)) if shown else Note("there are no tasks in this session")]
    if others:
        shows += [Note("in other sessions:"), table(_rows(others))]
    return shows


def _rows(found: Sequence[Task]) -> Sequence[tuple[str, str]]:
    now = _now()
    return [
        (
            task.id,
            f"{state_words(task) if task.ended else task.state:<28} "
            f"{'for ' + duration(now - task.created) if task.is_open else time_ago(task.ended, now):<12} {one_line(task_label(task))}",
        )
        for task in found
    ]


async def _task(chat: "Conversation", task: Task) -> Sequence[Show]:
    wish, now = task.spec, _now()
    rows = [
        ("task", task.id),
        ("command" if wish.kind == "command" else "work", wish.command),
        ("for", wish.description),
        ("state", state_words(task) + (f", for {duration(now - task.created)}" if task.is_open else "")),
        ("reason", task.why),
        ("folder", task.workspace + (f"/{wish.workdir}" if wish.workdir else "")),
        ("allowed", ", ".join(wish.grants)),
        ("output", chat.agent.commands.output_file(task) if wish.kind == "command" else ""),
    ]
    shown = table([(left, one_line(right, 300)) for left, right in rows if right])
    lines = last_lines(await read_tail(chat.agent, task), _SHOWN)
    return [shown, Output(lines)] if lines else [shown]


async def tail(chat: "Conversation", name: str) -> Sequence[Show]:
    task = await chat.agent.find_task(name)
    if task.spec.kind == "session":
        raise Refused(f"{task.id} is a session of its own: /switch {one_line(f'child {task.id}')} shows it")
    chat.running.follow(task)
    return []


async def write(chat: "Conversation", argument: str) -> Sequence[Show]:
    name, _, text = argument.partition(" ")
    task = await chat.agent.find_task(name)
    if not task.is_open or task.spec.kind == "session":
        raise Refused(f"{task.id} reads nothing: {'a session' if task.is_open else 'it ' + state_words(task)}")
    await run_sync(chat.agent.commands.write, task, text.encode() + b"\n")
    return [Note(f"written to {task.id}", "good")]


async def kill(chat: "Conversation", name: str) -> Sequence[Show]:
    task = await chat.agent.find_task(name)
    if not task.is_open:
        return [Note(f"{task.id} has ended already: {state_words(task)}")]
    ended = await chat.agent.kill_task(task)
    if ended.is_delivered and chat.session and ended.session == chat.session.id:
        return []  # Its notice says so.
    return [Note(f"{ended.id} and all it started are gone: {state_words(ended)}", "good")]


async def yes(chat: "Conversation", reach: str) -> Sequence[Show]:
    return await _answer(chat, reach.lower() or ONCE)


async def no(chat: "Conversation", argument: str) -> Sequence[Show]:
    return await _answer(chat, NO)


async def _answer(chat: "Conversation", answer: str) -> Sequence[Show]:
    if chat.asked is None:
        return [Note("no question waits in this session")]
    await chat.answer(chat.asked, answer)
    return []


async def grants(chat: "Conversation", argument: str) -> Sequence[Show]:
    found = await chat.agent.permissions()
    chat.know({"grant": [(f"forget {grant.id}", grant.need) for grant in found]})
    verb, _, name = argument.partition(" ")
    if verb == "forget" and name:
        if await chat.agent.revoke_permission(name.strip()):
            return [Note(f"{one_line(name)} is taken back: it will be asked for again", "good")]
        raise Refused(f"there is no grant {one_line(name)!r}; /grants lists them")
    if argument:
        raise Refused("say /grants, or /grants forget GRANT")
    if not found:
        return [Note("nothing is allowed beyond what every command may do")]
    names = {session.id: session.name for session in await chat.agent.sessions(10_000)}
    rows = [
        (
            grant.id,
            f"{one_line(grant.need, 60)}, in {grant.scope} "
            + (
                one_line(names.get(grant.applies_to, grant.applies_to))
                if grant.scope == "session"
                else short_path(grant.applies_to, 60)
            )
            + f"  ({time_ago(grant.created, _now())})",
        )
        for grant in found
    ]
    return [table(rows)]


def _now() -> int:
    return time.time_ns() // 1_000_000
