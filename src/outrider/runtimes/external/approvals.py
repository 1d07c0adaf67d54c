"""Puts another program's wishes to rules, grants and people, and waits for the answer, also over a restart."""

from collections.abc import Callable

import anyio

from outrider.core.approvals import ApprovalRequest, Verdict
from outrider.core.ports import ToolEnvironment, Turn
from outrider.core.types import Call
from outrider.runtimes.tool_runner import deny_unreachable, record_question, verdict_of

ANSWER_TIMEOUT = 600.0
"""Seconds a question is waited for while the other program is kept running for its answer."""
_REFRESH_INTERVAL = 0.5
"""Seconds between two looks whether the turn is to be let go of."""


class ApprovalSuspended(Exception):
    """Nobody has answered for a while: the turn is left as it is, holding nothing, until someone does."""


class JournalWatcher:
    """Tells everyone in a turn when something was added to its journal by others."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._changed = anyio.Event()

    async def listen(self, listener: Callable[[], None]) -> None:
        """Take in what others add, for as long as the turn goes on; `told` is called after each time."""
        while True:
            await self._turn.wait_for_entries()
            self._changed.set()
            self._changed = anyio.Event()
            listener()

    async def wait_until(self, is_so: Callable[[], bool]) -> None:
        """Wait for the journal to be so."""
        while not is_so():
            await self._changed.wait()


class ApprovalGate:
    """The questions of one turn."""

    def __init__(
        self, turn: Turn, environment: ToolEnvironment, news: JournalWatcher, patience: float = ANSWER_TIMEOUT
    ) -> None:
        self._turn = turn
        self._tool_environment = environment
        self._journal = news
        self._timeout = patience

    async def verdict(self, call: Call, request: ApprovalRequest) -> Verdict:
        """`allow` or `deny`, by rule, by grant or by a person. The call is recorded already. Raises Parked."""
        verdict = await self._tool_environment.verdict(request, self._turn.session)
        if verdict != "ask":
            return verdict
        await record_question(self._turn, call, request)
        await self.deny_unreachable()
        return await self.wait_for_answer(call)

    async def wait_for_answer(self, call: Call) -> Verdict:
        """The answer to a question that was asked. Raises Parked."""
        with anyio.move_on_after(self._timeout):
            while call.id not in self._turn.state().answers:
                with anyio.move_on_after(_REFRESH_INTERVAL):
                    await self._journal.wait_until(lambda: call.id in self._turn.state().answers)
                # Whoever carries the turn may be about to leave, and nothing is in progress that had to end first.
                await self._turn.refresh()
        answer = self._turn.state().answers.get(call.id)
        if answer is None:
            raise ApprovalSuspended
        return verdict_of(answer)

    async def deny_unreachable(self) -> bool:
        """A question that nobody can answer is a no. True when at least one was answered so."""
        return await deny_unreachable(self._turn, self._tool_environment)
