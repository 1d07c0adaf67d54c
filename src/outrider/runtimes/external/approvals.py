"""Approval gate for external programs: rules, permissions and people decide what the program may do.

A question survives a restart. When nobody answers for a while, the turn is suspended and holds nothing until there is
an answer.
"""

from collections.abc import Callable, Iterable, Sequence

import anyio

from outrider.core.approvals import NO, AccessDecision, ApprovalRequest, decision_of_answer
from outrider.core.events import Answered, Asked
from outrider.core.plan import AnsweredQuestion, State
from outrider.core.ports import ToolEnvironment, Turn
from outrider.core.types import Call
from outrider.runtimes.tool_runner import decide_or_ask, deny_unreachable, record_question

ANSWER_TIMEOUT = 600.0
"""Seconds to wait for an answer while the external program keeps running."""
_REFRESH_INTERVAL = 0.5
"""Seconds between two checks whether the turn is to be handed over."""


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


def stale_questions(state: State, *, asks_before_running: bool = False) -> Sequence[Asked]:
    """Questions about calls that run already or have ended. They cannot wait for the next run: when the program that
    asked is gone, an answer reaches nobody.

    `asks_before_running`: a call that the program asks about once more after a yes has not run yet.
    """
    running = state.begun - state.asked_again if asks_before_running else state.begun
    waiting = {call.id for call in state.calls if call.id not in running}
    return [asked for asked in state.questions.values() if asked.call not in waiting]


async def withdraw_stale_questions(turn: Turn, *, asks_before_running: bool = False) -> None:
    """Answer these with no, before a turn is run again."""
    for asked in stale_questions(turn.state(), asks_before_running=asks_before_running):
        await turn.record(Answered(asked.ask, NO), key=f"answer/{asked.ask}")


class ApprovalGate:
    """The approvals of one turn. Each answer is used once, for what was asked."""

    def __init__(
        self,
        turn: Turn,
        environment: ToolEnvironment,
        journal: JournalWatcher,
        *,
        timeout: float = ANSWER_TIMEOUT,
        asks_before_running: bool = False,
    ) -> None:
        """`asks_before_running`: see `stale_questions`."""
        self._turn = turn
        self._tool_environment = environment
        self._journal = journal
        self._timeout = timeout
        self._asks_before_running = asks_before_running
        self._earlier_answers: list[AnsweredQuestion] = []

    def remember(self, answers: Iterable[AnsweredQuestion]) -> None:
        """Apply answers from before an interruption when the program asks for exactly the same again, each once."""
        self._earlier_answers += [answered for answered in answers if answered.asked.digest]

    async def decide(self, call: Call, request: ApprovalRequest) -> AccessDecision:
        """`allow` or `deny`, by an earlier answer, a rule, a permission or a person. Raises ApprovalSuspended.

        The call is already in the journal.
        """
        decision = await decide_or_ask(self._tool_environment, self._turn, request)
        if decision.verdict == "deny":
            return decision
        for earlier in self._earlier_answers:
            if earlier.holds_for(request):
                self._earlier_answers.remove(earlier)
                return earlier.decision
        if decision.verdict == "allow":
            return decision
        asked = await record_question(self._turn, call, request)
        await self.deny_unreachable()
        try:
            await self._wait_until(lambda: asked.ask not in self._turn.state().questions)
        except ApprovalSuspended:
            if asked not in stale_questions(self._turn.state(), asks_before_running=self._asks_before_running):
                raise
            await self.withdraw(call)
        answered = self._turn.state().answers.get(asked.ask)
        return answered.decision if answered else decision_of_answer(NO, is_by_person=False)

    async def wait_for_answers(self, call: Call) -> None:
        """Wait until no question about this call is open. Raises ApprovalSuspended."""
        await self._wait_until(lambda: not self._turn.state().is_asked(call.id))

    async def _wait_until(self, is_answered: Callable[[], bool]) -> None:
        address = self._turn.state().address
        with anyio.move_on_after(self._timeout):
            while not is_answered():
                with anyio.move_on_after(_REFRESH_INTERVAL):
                    await self._journal.wait_until(is_answered)
                # The owner of the turn may be about to hand it over, and no step is running that had to end first.
                await self._turn.refresh()
                if self._turn.state().address != address:  # A person at another address has joined the turn.
                    address = self._turn.state().address
                    await self.deny_unreachable()
        if not is_answered():
            raise ApprovalSuspended

    async def withdraw(self, call: Call) -> None:
        """Answer the open questions about this call with no: the program does not wait for them any more."""
        for asked in tuple(self._turn.state().questions.values()):
            if asked.call == call.id:
                await self._turn.record(Answered(asked.ask, NO), key=f"answer/{asked.ask}")

    async def deny_unreachable(self) -> bool:
        """Answer pending questions with no where nobody can answer them. True when there were any."""
        return await deny_unreachable(self._turn, self._tool_environment)
