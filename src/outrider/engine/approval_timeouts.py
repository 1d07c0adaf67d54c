"""Timeouts of questions: unlimited by default; with a limit, an unanswered question is answered with no."""

from collections.abc import Callable

import anyio
from anyio.abc import TaskGroup

from outrider.core.approvals import NO
from outrider.core.events import Asked
from outrider.core.store_port import Session, TaskStore


class ApprovalTimeouts:
    """Answers no to questions that were not answered in time."""

    def __init__(self, store: TaskStore, wake: Callable[[str], None], seconds: float, group: TaskGroup) -> None:
        self._store = store
        self._wake = wake
        self._seconds = seconds
        self._group = group
        self._pending: set[tuple[str, str]] = set()

    def start(self, session: Session, asked: Asked) -> None:
        """Start the timeout of this question; after a restart it starts again."""
        if (session.id, asked.ask) not in self._pending:
            self._pending.add((session.id, asked.ask))
            self._group.start_soon(self._expire, session.id, asked.ask)

    async def _expire(self, session: str, question_id: str) -> None:
        await anyio.sleep(self._seconds)
        self._pending.discard((session, question_id))
        if await self._store.answer(session, question_id, NO, ""):
            self._wake(session)
