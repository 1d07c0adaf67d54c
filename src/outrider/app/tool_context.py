"""The environment of tool calls: the workspace and tasks of a session, and what rules and permissions allow."""

from collections.abc import Callable, Sequence

from outrider.app.addresses import CHANNELS
from outrider.app.child_sessions import SessionTasks, TaskPolicy
from outrider.config.redact import build_redactor
from outrider.config.schema import Config
from outrider.core.approvals import NO, AccessDecision, ApprovalRequest, decide_access
from outrider.core.delivery import channel_of, check_delivery
from outrider.core.events import Answered, Asked
from outrider.core.plan import State
from outrider.core.ports import ToolContext
from outrider.core.store_port import Blobs, FullStore, Session
from outrider.core.tasks import running_summary
from outrider.core.types import Call
from outrider.engine.approval_timeouts import ApprovalTimeouts
from outrider.engine.task_supervisor import TaskSupervisor
from outrider.engine.worker import Worker
from outrider.workspaces.git_protection import ProtectedFiles
from outrider.workspaces.held_paths import hold_workspace, workspace_identity
from outrider.workspaces.local import LocalWorkspace
from outrider.workspaces.program_files import program_folders


class HomeToolEnvironment:
    """The `ToolEnvironment` of every session of one home."""

    def __init__(
        self,
        config: Config,
        store: FullStore,
        blobs: Blobs,
        supervisor: TaskSupervisor,
        policy: TaskPolicy,
        worker: Worker,
        now: Callable[[], int],
        timeouts: ApprovalTimeouts | None,
    ) -> None:
        self._home = str(config.home)
        self._rules = config.rules
        self._redactor = build_redactor(config)
        self._store = store
        self._blobs = blobs
        self._task_supervisor = supervisor
        self._policy = policy
        self._worker = worker
        self._now = now
        self._timeouts = timeouts

    async def check_workspace(self, session: Session) -> Session:
        # A person may have chosen another folder since this turn began.
        session = await self._store.find(session.person, session.id) or session
        identity = workspace_identity(session.workspace, session.identity, session.name)
        if identity != session.identity:
            # Its first use, or the first one since the machine was started. Another call may be faster.
            session = await self._store.record_identity(session.id, identity, replaces=session.identity)
            hold_workspace(session.workspace, session.identity, session.name).close()
        return session

    async def tool_context(self, session: Session, state: State, call: Call) -> ToolContext:
        session = await self.check_workspace(session)
        return ToolContext(
            session=session,
            workspace=LocalWorkspace(
                session.workspace,
                session.identity,
                (self._home,),
                protection=ProtectedFiles(self._policy.commands.repositories, session.id),
                program=program_folders(),
            ),
            blobs=self._blobs,
            call=call.id,
            tasks=SessionTasks(self._store, self._task_supervisor, self._worker, self._policy, session),
            address=state.address,
            delivery=check_delivery(state.address, CHANNELS),
        )

    async def decide_access(self, request: ApprovalRequest, session: Session) -> AccessDecision:
        if not request.needs:  # nothing that a permission could cover
            return decide_access(request, self._rules, frozenset())
        permissions = await self._store.list_permissions(session.person)
        scopes = {session.id, session.workspace}
        return decide_access(request, self._rules, frozenset(p.need for p in permissions if p.applies_to in scopes))

    def answer_unreachable(self, session: Session, questions: Sequence[Asked], address: str) -> Sequence[Answered]:
        traits = CHANNELS.get(channel_of(address))
        if not (traits and traits.can_answer):
            return [Answered(asked.ask, NO) for asked in questions]
        if self._timeouts:
            for asked in questions:
                self._timeouts.start(session, asked)
        return ()

    def redact(self, text: str) -> str:
        return self._redactor.redact(text)

    async def running_tasks_note(self, session: Session) -> str:
        if not self._task_supervisor.has_open(session.id):
            return ""
        tasks = await self._store.list_tasks(session.person, session.id, open_only=True, limit=100)
        return running_summary([task for task in tasks if not task.spec.is_awaited], self._now())
