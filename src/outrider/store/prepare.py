"""Makes a home's store ready to be opened: new, checked, repaired or upgraded. Says what the person should know."""

from collections.abc import Sequence
from pathlib import Path

from outrider.core.errors import Refused
from outrider.store.check import find_problems
from outrider.store.connect import connect, remove_database, side_files
from outrider.store.lock import LockHolder
from outrider.store.migrate import Migration, create_store, load_migrations, migrate, schema_version
from outrider.store.repair import diagnose, finish_swap, repair_store, set_aside

ALWAYS_CHECKED_SIZE = 64 * 1024 * 1024
"""A store up to this size is checked at every start; a larger one when the last run did not end well."""


def prepare_store(home: Path, before: LockHolder, migrations: Path) -> list[str]:
    """Afterwards `store.db` is there, sound, writable and of our version. Raises sqlite3.Error or OSError otherwise."""
    path, steps = home / "store.db", load_migrations(migrations)
    notices: list[str] = []
    if kept := finish_swap(path):
        notices.append(f"The store was damaged; what could be read was recovered. The damaged file is kept as {kept}.")
        remove_database(home / "search.db")
    if path.exists():
        notices += _check_and_repair(path, before, steps)
        notices += migrate(path, steps)
    else:
        notices += _create_missing(path, before, steps)
    _check_writable(path)
    return notices


def _check_and_repair(path: Path, before: LockHolder, steps: Sequence[Migration]) -> list[str]:
    newest = steps[-1].version
    look_inside = before.left != "clean" or path.stat().st_size < ALWAYS_CHECKED_SIZE
    problem = diagnose(path, newest, look_inside=look_inside)
    if not problem:
        _refuse_newer(path, newest)
        if before.left == "damaged":
            problem = next(iter(_full_check(path)), "")
    if not problem:
        return []
    notices = repair_store(path, problem, steps)
    remove_database(path.with_name("search.db"))
    return notices


def _create_missing(path: Path, before: LockHolder, steps: Sequence[Migration]) -> list[str]:
    notices: list[str] = []
    if any(each.exists() for each in side_files(path)):
        notices.append(f"The store {path} was missing; what was left beside it is kept as {set_aside(path)}-wal.")
    elif before.left:
        notices.append(f"The store {path} was missing; a new, empty one was begun.")
    remove_database(path.with_name("search.db"))
    create_store(path, steps)
    return notices


def _refuse_newer(path: Path, newest: int) -> None:
    db = connect(path)
    try:
        version = schema_version(db)
    finally:
        db.close()
    if version > newest:
        raise Refused(
            f"the store {path} is of version {version}, made by a newer Outrider; this one knows up to {newest}: "
            "upgrade Outrider"
        )


def _full_check(path: Path) -> list[str]:
    db = connect(path)
    try:
        return find_problems(db)
    finally:
        db.close()


def _check_writable(path: Path) -> None:
    db = connect(path)
    try:
        db.execute("BEGIN IMMEDIATE")
        db.execute("ROLLBACK")
    finally:
        db.close()
