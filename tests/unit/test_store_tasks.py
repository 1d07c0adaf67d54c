"""The smaller parts of how tasks are kept: which index answers what, and ids that are taken."""

import secrets
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from outrider.core.tasks import OPEN_STATES, TaskSpec
from outrider.store import tasks as sql_tasks
from outrider.store.migrations import MIGRATIONS, apply_migrations, load_migrations
from outrider.store.sqlite import open_store

pytestmark = pytest.mark.anyio


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    opened = sqlite3.connect(":memory:", isolation_level=None)
    apply_migrations(opened, load_migrations(MIGRATIONS))
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("statement", "index"),
    [
        (sql_tasks.TASK_BY_CALL, "tasks_by_call (session=? AND call=?)"),
        (sql_tasks.TASKS_OF, "tasks_of_person (person=?)"),
        (sql_tasks.TASKS_IN, "tasks_of_session (session=?)"),
        (sql_tasks.OPEN_TASKS_OF, "tasks_open"),
        (sql_tasks.OPEN_TASKS_IN, "tasks_open (session=?)"),
        (sql_tasks.OPEN_TASKS, "tasks_open"),
        (sql_tasks.COUNT_OPEN_TASKS, "tasks_open (session=?)"),
        (sql_tasks.TASK_OF_CHILD, "tasks_by_child (child=?)"),
        (sql_tasks.NEXT_TASK_NUMBER, "tasks_of_person (person=?)"),
        (sql_tasks.DELETE_TASKS, "tasks_"),
        (sql_tasks.PERMISSIONS_OF, "grants_by_reach (person=?)"),
    ],
)
def test_no_question_about_tasks_reads_all_of_them(db: sqlite3.Connection, statement: str, index: str) -> None:
    count = max(number for number in range(9) if f"?{number}" in statement or number == 0)
    plan = [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {statement}", ("",) * count)]
    assert [step for step in plan if f"INDEX {index}" in step], plan


def test_the_index_of_open_tasks_knows_what_open_means(db: sqlite3.Connection) -> None:
    (said,) = db.execute("SELECT sql FROM sqlite_schema WHERE name = 'tasks_open'").fetchone()
    named = said.partition(" IN (")[2].rstrip(")").replace("'", "").split(", ")
    assert frozenset(named) == OPEN_STATES


async def test_an_id_that_is_taken_is_not_given_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    letters = iter("aaaaaa" + "aaaaaa" + "aaaaab")
    monkeypatch.setattr(secrets, "choice", lambda _: next(letters))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    async with open_store(tmp_path) as store:
        session = await store.create("ann", "garden", "/garden")
        wishes = [TaskSpec(kind="command", call=call, command="make") for call in ("c1", "c2")]
        made = [(await store.create_task(session.id, wish, max_open=9))[0].id for wish in wishes]
    assert made == ["t-aaaaaa", "t-aaaaab"]
