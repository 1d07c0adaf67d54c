"""How tasks are stored: which index answers which query, and ids that are in use."""

import secrets
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from outrider.core.tasks import OPEN_STATES, TaskSpec
from outrider.store import tasks
from outrider.store.migrations import MIGRATIONS, apply_migrations, load_migrations
from outrider.store.sqlite import open_store

pytestmark = pytest.mark.anyio


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    apply_migrations(connection, load_migrations(MIGRATIONS))
    yield connection
    connection.close()


@pytest.mark.parametrize(
    ("statement", "index"),
    [
        (tasks.TASK_BY_CALL, "tasks_by_call (session=? AND call=?)"),
        (tasks.TASKS_OF, "tasks_of_person (person=?)"),
        (tasks.TASKS_IN, "tasks_of_session (session=?)"),
        (tasks.OPEN_TASKS_OF, "tasks_open"),
        (tasks.OPEN_TASKS_IN, "tasks_open (session=?)"),
        (tasks.OPEN_TASKS, "tasks_open"),
        (tasks.COUNT_OPEN_TASKS, "tasks_open (session=?)"),
        (tasks.TASK_OF_CHILD, "tasks_by_child (child=?)"),
        (tasks.NEXT_TASK_NUMBER, "tasks_of_person (person=?)"),
        (tasks.DELETE_TASKS, "tasks_"),
        (tasks.PERMISSIONS_OF, "grants_by_reach (person=?)"),
    ],
)
def test_no_query_reads_all_tasks(db: sqlite3.Connection, statement: str, index: str) -> None:
    count = max(number for number in range(9) if f"?{number}" in statement or number == 0)
    plan = [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {statement}", ("",) * count)]
    assert [step for step in plan if f"INDEX {index}" in step], plan


def test_the_index_of_open_tasks_covers_all_open_states(db: sqlite3.Connection) -> None:
    (statement,) = db.execute("SELECT sql FROM sqlite_schema WHERE name = 'tasks_open'").fetchone()
    states = statement.partition(" IN (")[2].rstrip(")").replace("'", "").split(", ")
    assert frozenset(states) == OPEN_STATES


async def test_an_id_in_use_is_not_given_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    letters = iter("aaaaaa" + "aaaaaa" + "aaaaab")
    monkeypatch.setattr(secrets, "choice", lambda _: next(letters))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    async with open_store(tmp_path) as store:
        session = await store.create("ann", "garden", "/garden")
        specs = [TaskSpec(kind="command", call=call, command="make") for call in ("c1", "c2")]
        made = [(await store.create_task(session.id, spec, max_open=9))[0].id for spec in specs]
    assert made == ["t-aaaaaa", "t-aaaaab"]
