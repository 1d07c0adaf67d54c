"""Migrations of the store: numbered SQL files, rehearsed on a copy before they change the store itself."""

import re
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from outrider.core.errors import Refused
from outrider.store.database import connect, connect_writing, copy_database, remove_database
from outrider.system.files import fsync_folder

# The tables whose rows are counted before and after a migration.
COUNTED_TABLES = (
    "SELECT name FROM sqlite_schema WHERE type = 'table' AND name IN ('sessions', 'entries', 'tasks', 'grants')"
)
COUNT_ROWS = "SELECT count(*) FROM {table}"
MIGRATIONS = Path(__file__).parent / "migrations"
APPLICATION_ID = 0x4F757472
"""Distinguishes a store of ours from other SQLite files."""
_FILE_NAME = re.compile(r"(\d{4})_\w+\.sql")


class Migration(Struct, frozen=True):
    version: int
    script: str


def load_migrations(folder: Path) -> Sequence[Migration]:
    """All migrations of a folder, in order."""
    named = ((path, _FILE_NAME.fullmatch(path.name)) for path in sorted(folder.iterdir()))
    return [Migration(int(match[1]), path.read_text("utf-8")) for path, match in named if match]


def schema_version(db: sqlite3.Connection) -> int:
    return db.execute("PRAGMA user_version").fetchone()[0]


def apply_migrations(db: sqlite3.Connection, steps: Sequence[Migration]) -> None:
    """Run all of these in one transaction, or none of them."""
    scripts = "\n".join(step.script for step in steps)
    try:
        db.executescript(f"BEGIN IMMEDIATE;\n{scripts}\n;PRAGMA user_version = {steps[-1].version};\nCOMMIT;")
    except sqlite3.Error:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def create_store(path: Path, steps: Sequence[Migration]) -> None:
    """Create an empty store, which appears under its name only when it is complete."""
    unfinished = path.with_name(path.name + ".new")
    remove_database(unfinished)
    db = connect_writing(unfinished)
    try:
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        apply_migrations(db, steps)
    finally:
        db.close()
    unfinished.replace(path)
    fsync_folder(path.parent)


def migrate(path: Path, steps: Sequence[Migration]) -> list[str]:
    """Upgrade an existing store to the newest version; the notices about it."""
    db = connect(path)
    try:
        version, newest = schema_version(db), steps[-1].version
        missing = [step for step in steps if step.version > version]
        if not missing:
            return []
        backup = path.with_name(f"{path.name}.before-{newest}")
        copy_database(db, backup)
        _rehearse(db, path, missing)
        apply_migrations(db, missing)
    finally:
        db.close()
    return [f"The store was upgraded from version {version} to {newest}; the previous one is kept as {backup}."]


def _rehearse(db: sqlite3.Connection, path: Path, missing: Sequence[Migration]) -> None:
    copy = path.with_name(path.name + ".rehearsal")
    copy_database(db, copy)
    rehearsal = connect(copy)
    try:
        apply_migrations(rehearsal, missing)
        problem = _rehearsal_problem(rehearsal, before=db)
    except sqlite3.Error as error:
        problem = str(error)
    finally:
        rehearsal.close()
        remove_database(copy)
    if problem:
        raise Refused(
            f"the upgrade of the store {path} to version {missing[-1].version} failed in rehearsal ({problem}); "
            "nothing was changed: continue with the previous version of Outrider, and report this"
        )


def _rehearsal_problem(after: sqlite3.Connection, before: sqlite3.Connection) -> str:
    (result,) = after.execute("PRAGMA quick_check(1)").fetchone()
    if result != "ok":
        return str(result)
    if broken := after.execute("PRAGMA foreign_key_check").fetchone():
        return f"a row of {broken[0]} refers to a row that does not exist"
    for (table,) in before.execute(COUNTED_TABLES).fetchall():
        (had,), (has,) = (db.execute(COUNT_ROWS.format(table=table)).fetchone() for db in (before, after))
        if had != has:
            return f"{had} {table} became {has}"
    return ""
