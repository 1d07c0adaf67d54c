"""When the store is damaged: notice it, keep the damaged file, and carry every readable row into a new store.

The swap can be cut anywhere: a salvaged store that is whole but not yet in its place is put there at the next start.
"""

import shutil
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path

from outrider.store.connect import connect, connect_writing, fsync_folder, remove_database, side_files
from outrider.store.faults import is_environmental
from outrider.store.migrate import APPLICATION_ID, Migration, create_store, schema_version
from outrider.store.pages import PAGE_SIZE
from outrider.store.salvage import RecoveryResult, recover_rows


def diagnose(path: Path, newest: int, *, look_inside: bool) -> str:
    """What is wrong with this file, or nothing. A newer version than we know is not damage.

    Raises sqlite3.Error when the surroundings are at fault.
    """
    db = connect(path)
    try:
        (application,) = db.execute("PRAGMA application_id").fetchone()
        if application != APPLICATION_ID:
            return "it is not a store of Outrider"
        if schema_version(db) > newest:
            return ""
        db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if look_inside:
            (found,) = db.execute("PRAGMA quick_check(1)").fetchone()
            return "" if found == "ok" else " ".join(str(found).split())
        return ""
    except sqlite3.Error as error:
        if is_environmental(error):
            raise
        return str(error)
    finally:
        db.close()


def repair_store(path: Path, problem: str, steps: Sequence[Migration]) -> list[str]:
    """Salvage into a new store, set the damaged one aside; what to tell the person of it."""
    scratch = path.with_name(path.name + ".scratch")
    saved = path.with_name(path.name + ".salvaging")
    try:
        found = _recover_copy(path, scratch, saved, steps)
    finally:
        remove_database(scratch)
    saved.replace(_recovered_path(path))
    fsync_folder(path.parent)
    kept = finish_swap(path)
    return [
        f"The store was damaged ({problem}). The damaged file is kept as {kept}. "
        f"Recovered: {found.sessions} sessions with {found.entries} entries.",
        *found.losses,
    ]


def finish_swap(path: Path) -> Path | None:
    """Put a salvaged store into its place, if there is one; where the damaged one went."""
    if not _recovered_path(path).exists():
        return None
    kept = set_aside(path)
    _recovered_path(path).replace(path)
    fsync_folder(path.parent)
    return kept


def set_aside(path: Path) -> Path:
    """Rename a damaged file and what is beside it. The log goes first, so that it is never read into another file."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    kept, n = path.with_name(f"{path.name}.damaged-{stamp}"), 1
    while kept.exists():
        n += 1
        kept = path.with_name(f"{path.name}.damaged-{stamp}-{n}")
    for source, target in zip((*side_files(path), path), (*side_files(kept), kept), strict=True):
        if source.exists():
            source.replace(target)
    fsync_folder(path.parent)
    return kept


def _recovered_path(path: Path) -> Path:
    return path.with_name(path.name + ".salvaged")


def _recover_copy(path: Path, scratch: Path, saved: Path, steps: Sequence[Migration]) -> RecoveryResult:
    _copy_files(path, scratch)
    if not _is_readable(scratch):
        # The first page tells where all else lies. As the first migration made it, it is right for every store: what
        # later ones added lies elsewhere in each.
        remove_database(saved)
        create_store(saved, steps[:1])
        _copy_files(path, scratch)
        _replace_first_page(scratch, saved.read_bytes()[:PAGE_SIZE])
    remove_database(saved)
    create_store(saved, steps)
    damaged, fresh = connect(scratch), connect_writing(saved)
    try:
        with scratch.open("rb") as pages:
            return recover_rows(damaged, pages, fresh, path.parent)
    finally:
        damaged.close()
        fresh.close()


def _copy_files(path: Path, scratch: Path) -> None:
    remove_database(scratch)
    for source, target in zip((path, side_files(path)[0]), (scratch, side_files(scratch)[0]), strict=True):
        if source.exists():
            shutil.copyfile(source, target)
            target.chmod(0o600)


def _is_readable(path: Path) -> bool:
    db = connect(path)
    try:
        db.execute("SELECT (SELECT id FROM sessions LIMIT 1), (SELECT session FROM entries LIMIT 1)").fetchone()
    except sqlite3.Error as error:
        if is_environmental(error):
            raise
        return False
    finally:
        db.close()
    return True


def _replace_first_page(path: Path, page: bytes) -> None:
    pages = path.stat().st_size // PAGE_SIZE
    if not pages:
        return
    with path.open("r+b") as file:
        # Size in pages at byte 28, then an empty list of free pages.
        file.write(page[:28] + pages.to_bytes(4, "big") + bytes(8) + page[40:])
