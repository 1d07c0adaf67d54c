"""Group commit: whatever waits to be written becomes one transaction, and nobody is told before it is on the disk."""

import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from outrider.config.fail import failpoint
from outrider.store.faults import FILE_GONE, is_busy
from outrider.store.lane import EXPECTED_ERRORS, Operation, OperationResult

MAX_BATCH = 256


class GroupCommit:
    """Carries the writer's acts. One that fails leaves its neighbours alone."""

    def __init__(self, db: sqlite3.Connection, path: Path) -> None:
        self._db = db
        self._path = path
        self._inode = os.stat(path).st_ino

    def __call__(self, acts: Sequence[Operation]) -> Sequence[OperationResult]:
        if not acts:
            return []
        try:
            return self._commit(acts)
        except sqlite3.Error as error:
            self._roll_back()
            if len(acts) == 1 or is_busy(error):
                return [OperationResult(error=error)] * len(acts)
        # Nothing of the group was kept: each on its own, so that only the one at fault is told.
        return [self((act,))[0] for act in acts]

    def _commit(self, acts: Sequence[Operation]) -> Sequence[OperationResult]:
        self._db.execute("BEGIN IMMEDIATE")
        outcomes = [self._run_in_savepoint(act) for act in acts]
        failpoint("commit-before")
        self._check_file()
        self._db.execute("COMMIT")
        failpoint("commit-after")
        return outcomes

    def _check_file(self) -> None:
        """SQLite goes on writing to a file that was removed, and everything would be gone with the process."""
        try:
            is_there = os.stat(self._path).st_ino == self._inode
        except FileNotFoundError:
            is_there = False
        if not is_there:
            raise sqlite3.DatabaseError(f"{FILE_GONE}: {self._path}")

    def _run_in_savepoint(self, act: Operation) -> OperationResult:
        self._db.execute("SAVEPOINT act")
        try:
            outcome = OperationResult(act())
        except EXPECTED_ERRORS as error:
            self._db.execute("ROLLBACK TO act")
            outcome = OperationResult(error=error)
        self._db.execute("RELEASE act")
        return outcome

    def _roll_back(self) -> None:
        # SQLite has already rolled back by itself after some errors, a full disk among them.
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")
