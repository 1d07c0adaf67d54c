"""Where a session's calls run: its workspace, its tasks, and what rules and grants allow there."""

from collections.abc import Callable, Sequence
from pathlib import Path

from outrider.app.addresses import CHANNELS
from outrider.config.redact import build_redactor
from outrider.config.schema import Config
from outrider.core.approvals import NO, ApprovalRequest, Verdict, decide_access
from outrider.core.delivery import channel_of, check_delivery
from outrider.core.events import Answered, Asked
from outrider.core.plan import State
from outrider.core.ports import Tasks, ToolContext, Workspace
from outrider.core.store_port import Blobs, Session, TaskStore
from outrider.core.tasks import running_summary
from outrider.core.types import Call


class HomeToolEnvironment:
    """The `Place` of every session of one home."""

    def __init__(
        self,
        config: Config,
        store: TaskStore,
        blobs: Blobs,
        workspace: Callable[[Path], Workspace],
        now: Callable[[], int],
    ) -> None:
        self._rules = config.rules
        self._redactor = build_redactor(config)
        self._store = store
        self._blobs = blobs
        self._workspace = workspace
        self._now = now
        self.session_tasks: Callable[[Session], Tasks] | None = None
        self.has_open_tasks: Callable[[str], bool] = lambda session: False
        self.start_timeout: Callable[[Session, Asked], None] = lambda session, asked: None
        """Called for every question that begins to wait."""

    async def tool_context(self, session: Session, state: State, call: Call) -> ToolContext:
        return ToolContext(
            session=session,
            workspace=self._workspace(Path(session.workspace)),
            blobs=self._blobs,
            call=call.id,
            tasks=self.session_tasks(session) if self.session_tasks else None,
            address=state.address,
            delivery=check_delivery(state.address, CHANNELS),
        )

    async def verdict(self, request: ApprovalRequest, session: Session) -> Verdict:
        if not request.needs:  # nothing that a grant could cover
            return decide_access(request, self._rules, frozenset())
        grants = await self._store.list_permissions(session.person)
        places = {session.id, session.workspace}
        return decide_access(request, self._rules, frozenset(g.need for g in grants if g.applies_to in places))

    def answer_unreachable(self, session: Session, questions: Sequence[Asked], address: str) -> Sequence[Answered]:
        traits = CHANNELS.get(channel_of(address))
        if not (traits and traits.can_answer):
            return [Answered(asked.ask, NO) for asked in questions]
        for asked in questions:
            self.start_timeout(session, asked)
        return ()

    def redact(self, text: str) -> str:
        return self._redactor.redact(text)

    async def running_tasks_note(self, session: Session) -> str:
        if not self.has_open_tasks(session.id):
            return ""
        tasks = await self._store.list_tasks(session.person, session.id, open_only=True, limit=100)
        return running_summary([task for task in tasks if not task.spec.is_awaited], self._now())
