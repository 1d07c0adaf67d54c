"""A child process that stores tasks and prints what was acknowledged as durable. The tests kill it.

`task_child.py HOME one` creates, starts, detaches and ends one task, a commit each, then answers a question;
`task_child.py HOME many` ends tasks of several sessions at once, forever.
"""

import os
import sys
from pathlib import Path

import anyio

from outrider.core.events import Asked, Started
from outrider.core.store_port import TaskEnd
from outrider.core.tasks import ProcessIdentity, TaskNotice, TaskSpec
from outrider.store.sqlite import SqliteStore, open_store

SESSIONS = 6
DONE = TaskEnd("succeeded", 0, "", 1_700_000_000_000)


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def command_task(call: str, *, is_awaited: bool = False) -> TaskSpec:
    return TaskSpec(kind="command", call=call, command="make", address="a", notify="always", is_awaited=is_awaited)


def notice_about(task: str) -> TaskNotice:
    return TaskNotice(task=task, event="ended", state="succeeded", command="make")


async def one(store: SqliteStore) -> None:
    session = await store.create("ann", "s", "/folder")
    say("session")
    task, _ = await store.create_task(session.id, command_task("c", is_awaited=True), 9)
    say("task")
    await store.mark_task_started(task.id, ProcessIdentity(1, 2, "boot"))
    say("running")
    await store.detach_task(task.id, "always")
    say("detached")
    await store.end_task_and_notify(task.id, DONE, notice_about(task.id))
    say("ended")
    claim = await store.claim(session.id)
    await store.append(session.id, Started(), claim.generation)
    await store.append(session.id, Asked("a1", "may I?"), claim.generation)
    say("asked")
    await store.answer(session.id, "a1", "once", "ann")
    say("answered")


async def many(store: SqliteStore, name: str) -> None:
    session = await store.create("ann", name, "/folder")
    number = 0
    while True:
        number += 1
        task, _ = await store.create_task(session.id, command_task(f"c{number}"), 9)
        await store.mark_task_started(task.id, ProcessIdentity(number, 2, "boot"))
        say("running", task.id)
        await store.end_task_and_notify(task.id, DONE, notice_about(task.id))
        say("ended", task.id)


async def main(home: Path, action: str) -> None:
    async with open_store(home, label="outrider child") as store:
        say("ready")
        if action == "one":
            await one(store)
            return
        async with anyio.create_task_group() as group:
            for number in range(SESSIONS):
                group.start_soon(many, store, f"s{number}")


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]), sys.argv[2])
