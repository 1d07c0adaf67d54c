"""Approval gate for external programs: rules, permissions and people decide what the program may do.

A question survives a restart. When nobody answers for a while, the turn is suspended and holds nothing until there is
an answer.
"""

from collections.abc import Callable

import anyio

from outrider.core.approvals import NO, AccessDecision, ApprovalRequest
from outrider.core.events import Answered
from outrider.core.ports import ToolEnvironment, Turn
from outrider.core.types import Call
from outrider.runtimes.tool_runner import answered_decision, deny_unreachable, question_id, record_question

ANSWER_TIMEOUT = 600.0
"""Seconds to wait for an answer while the external program keeps running."""
_REFRESH_INTERVAL = 0.5
"""Seconds between two checks whether the turn is to be handed over."""
IsSameCall = Callable[[Call, Call], bool]


class ApprovalSuspended(Exception):
    """Nobody answered in time. The turn continues when there is an answer."""


class JournalWatcher:
    """Notifies the parts of a turn when others add entries to its journal."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._changed = anyio.Event()

    async def listen(self, listener: Callable[[], None]) -> None:
        """Read new entries until cancelled, and call `listener` each time."""
        while True:
            await self._turn.wait_for_entries()
            self._changed.set()
            self._changed = anyio.Event()
            listener()

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._changed.wait()


class ApprovalGate:
    """The approvals of one turn."""

    def __init__(
        self,
        turn: Turn,
        environment: ToolEnvironment,
        journal: JournalWatcher,
        *,
        is_same_call: IsSameCall,
        timeout: float = ANSWER_TIMEOUT,
    ) -> None:
        """`is_same_call` says whether an answer that was given for one call holds for another."""
        self._turn = turn
        self._tool_environment = environment
        self._journal = journal
        self._is_same_call = is_same_call
        self._timeout = timeout
        self._earlier_answers: list[tuple[Call, AccessDecision]] = []

    def remember(self, call: Call, decision: AccessDecision) -> None:
        """Apply an answer from before an interruption to the same call when the program makes it again, once."""
        self._earlier_answers.append((call, decision))

    async def decide(self, call: Call, request: ApprovalRequest) -> AccessDecision:
        """`allow` or `deny`, by an earlier answer, a rule, a permission or a person. Raises ApprovalSuspended.

        The call is already in the journal.
        """
        for earlier in self._earlier_answers:
            if self._is_same_call(earlier[0], call):
                self._earlier_answers.remove(earlier)
                return earlier[1]
        decision = await self._tool_environment.decide_access(request, self._turn.session)
        if decision.verdict != "ask":
            return decision
        await record_question(self._turn, call, request)
        await self.deny_unreachable()
        return await self.wait_for_answer(call)

    async def wait_for_answer(self, call: Call) -> AccessDecision:
        """The answer to a question that is in the journal. Raises ApprovalSuspended."""
        with anyio.move_on_after(self._timeout):
            while call.id not in self._turn.state().answers:
                with anyio.move_on_after(_REFRESH_INTERVAL):
                    await self._journal.wait_until(lambda: call.id in self._turn.state().answers)
                # The owner of the turn may be about to hand it over, and no step is running that had to end first.
                await self._turn.refresh()
        decision = answered_decision(self._turn.state(), call)
        if decision is None:
            raise ApprovalSuspended
        return decision

    async def withdraw(self, call: Call) -> None:
        """Answer the question about this call with no: the program does not wait for it any more."""
        await self._turn.record(Answered(question_id(call), NO), key=f"answer/{question_id(call)}")

    async def deny_unreachable(self) -> bool:
        """Answer open questions with no where nobody can answer them. True when there were any."""
        return await deny_unreachable(self._turn, self._tool_environment)
