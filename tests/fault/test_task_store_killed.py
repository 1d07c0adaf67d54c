"""kill -9 of a process that stores tasks: the end of a task and its notice are both there or neither, and once."""

import random
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from outrider.core.events import Answered, Input
from outrider.core.tasks import Task
from outrider.store.sqlite import SqliteStore, open_store
from tests.contract.stores import bodies
from tests.support.task_child import DONE, command_task, notice_about

pytestmark = pytest.mark.anyio
CHILD = Path(__file__).parents[1] / "support" / "task_child.py"
COMMITS = ("session", "task", "running", "detached", "ended", "claimed", "started", "asked", "answered")
"""What each commit of the child makes durable."""


@contextmanager
def child(home: Path, action: str, fail: str = "") -> Generator["subprocess.Popen[str]"]:
    """A child process with an open store, killed afterwards."""
    with subprocess.Popen(
        [sys.executable, str(CHILD), str(home), action],
        env={"OUTRIDER_FAIL": fail},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def lines_until_dead(process: "subprocess.Popen[str]", kill_after: int = 0) -> list[str]:
    """What the child saw acknowledged."""
    lines: list[str] = []
    assert process.stdout
    for line in process.stdout:
        if line.endswith("\n"):
            lines.append(line.strip())
        if len(lines) == kill_after:
            process.kill()
    return lines


def killed_at(home: Path, point: str, commit: str) -> None:
    with child(home, "one", f"{point}:{COMMITS.index(commit) + 1}") as process:
        assert commit not in lines_until_dead(process)
        assert process.wait(60) == -9


async def notices(store: SqliteStore, session: str) -> list[str]:
    return [body.notice.task for body in await bodies(store, session) if isinstance(body, Input) and body.notice]


@pytest.mark.promise("L6")
@pytest.mark.parametrize(("point", "is_stored"), [("before_commit", False), ("after_commit", True)])
async def test_killed_at_the_end_of_a_task_its_end_and_its_notice_are_both_there_or_neither(
    tmp_path: Path, point: str, is_stored: bool
) -> None:
    killed_at(tmp_path / "home", point, "ended")
    async with open_store(tmp_path / "home", wait=20) as store:
        (task,) = await store.list_tasks("ann")
        assert (task.is_open, task.is_delivered) == (not is_stored, is_stored)
        assert await notices(store, task.session) == ([task.id] if is_stored else [])
        assert await store.sessions_with_work() == ([task.session] if is_stored else [])
        ended = await store.end_task_and_notify(task.id, DONE, notice_about(task.id))
        assert (ended.state, ended.is_delivered) == ("succeeded", True)
        assert await notices(store, task.session) == [task.id]
        assert (store.notices, await store.check()) == ((), [])


@pytest.mark.promise("L6")
@pytest.mark.parametrize(("point", "is_stored"), [("before_commit", False), ("after_commit", True)])
async def test_killed_while_detaching_the_end_is_returned_or_reported(
    tmp_path: Path, point: str, is_stored: bool
) -> None:
    killed_at(tmp_path / "home", point, "detached")
    async with open_store(tmp_path / "home", wait=20) as store:
        (task,) = await store.open_tasks()
        assert task.spec == command_task("c", is_awaited=not is_stored)
        assert (await store.end_task_and_notify(task.id, DONE, notice_about(task.id))).is_delivered
        assert await notices(store, task.session) == ([task.id] if is_stored else [])


@pytest.mark.promise("L4")
@pytest.mark.parametrize("point", ["before_commit", "after_commit"])
@pytest.mark.parametrize("commit", ["task", "running"])
async def test_killed_at_its_start_a_call_still_starts_one_task(tmp_path: Path, point: str, commit: str) -> None:
    killed_at(tmp_path / "home", point, commit)
    is_stored = commit == "running" or point == "after_commit"
    async with open_store(tmp_path / "home", wait=20) as store:
        session = await store.find("ann", "s")
        assert session
        before = await store.open_tasks()
        task, is_new = await store.create_task(session.id, command_task("c", is_awaited=True), 9)
        assert (is_new, list(before)) == (not is_stored, [task] if is_stored else [])
        assert task.state == ("running" if (commit, point) == ("running", "after_commit") else "queued")
        assert await store.open_tasks() == [task]


@pytest.mark.promise("L4")
@pytest.mark.parametrize(("point", "is_stored"), [("before_commit", False), ("after_commit", True)])
async def test_killed_at_an_answer_only_one_counts(tmp_path: Path, point: str, is_stored: bool) -> None:
    killed_at(tmp_path / "home", point, "answered")
    async with open_store(tmp_path / "home", wait=20) as store:
        session = await store.find("ann", "s")
        assert session
        assert (await store.answer(session.id, "a1", "no", "ann") is None) == is_stored
        answers = [body for body in await bodies(store, session.id) if isinstance(body, Answered)]
        assert answers == [Answered("a1", "once" if is_stored else "no", "ann")]


@pytest.mark.promise("L6")
@pytest.mark.parametrize("seed", range(4))
async def test_killed_at_any_moment_every_task_is_reported_exactly_once(tmp_path: Path, seed: int) -> None:
    with child(tmp_path / "home", "many") as process:
        lines = lines_until_dead(process, kill_after=random.Random(seed).randint(1, 600))
    async with open_store(tmp_path / "home", wait=20) as store:
        tasks = await all_tasks(store)
        ended = {task.id for task in tasks if not task.is_open}
        assert {line.split()[1] for line in lines if line.startswith("ended")} <= ended
        assert {line.split()[1] for line in lines} <= {task.id for task in tasks}
        assert await all_notices(store) == sorted(ended)
        for task in tasks:
            await store.end_task_and_notify(task.id, DONE, notice_about(task.id))
        assert await all_notices(store) == sorted(task.id for task in tasks)
        assert (store.notices, await store.check()) == ((), [])


async def all_tasks(store: SqliteStore) -> Sequence[Task]:
    return await store.list_tasks("ann", limit=10_000)


async def all_notices(store: SqliteStore) -> list[str]:
    return sorted([text for session in await store.list("ann") for text in await notices(store, session.id)])
