"""Takes what an agent says in one prompt: shows it at once, writes it down in order, and answers its questions."""

import secrets

import anyio
from msgspec import Struct

from outrider.config.fail import failpoint
from outrider.core.approve import NO, Verdict
from outrider.core.events import Answered, Delta
from outrider.core.parts import Call
from outrider.core.ports import Turn
from outrider.runtimes.acp.deeds import (
    ENDS,
    Wanted,
    changed,
    choose,
    deed_of,
    is_same,
    outcome_of,
    plan_of,
    request_of,
    text_of,
)
from outrider.runtimes.acp.process import Agent, Heard
from outrider.runtimes.acp.wire import Option, Permission, ToolCall, Update
from outrider.runtimes.calls import DENIED
from outrider.runtimes.jsonrpc import Id
from outrider.runtimes.outside.asking import Asking
from outrider.runtimes.outside.ledger import Deed, Ledger, Outcome, bounded

LONGEST = 1_000_000
"""Characters of one message that are kept; of more, the beginning and the end."""
_NOT_ONCE = "not run: it was allowed, and the agent offers no way to allow it only once"
_GAVE_UP = "not run: the agent stopped waiting for an answer"


class Settled(Struct, frozen=True):
    """A person's answer about a call that was cut off: it holds for the very same, once more, without asking."""

    call: Call
    verdict: Verdict

    def is_of(self, call: Call) -> bool:
        return self.call.tool == call.tool and is_same(self.call.args, call.args)


class Hearing:
    """What is said in one prompt."""

    def __init__(self, turn: Turn, agent: Agent, ledger: Ledger, asking: Asking, answered: list[Settled]) -> None:
        self._turn = turn
        self._agent = agent
        self._ledger = ledger
        self._asking = asking
        self._answered = answered
        self.prompt = ""
        """Where its calls are made; see `deed_of`."""
        self.asked: list[Id] = []
        """The question that waits for its answer."""
        self.at = anyio.current_time()
        """When something was heard last."""
        self._question = anyio.CancelScope()
        self._is_over = False
        self._calls: dict[str, Wanted] = {}
        self._open: set[str] = set()
        self._ended: set[str] = set()
        self._text: list[str] = []
        self._message: str | None = None
        self._spoken = 0
        # Messages have no ids that could be relied on, and none is ever read a second time.
        self._own = secrets.token_hex(4)

    @property
    def is_waiting(self) -> bool:
        """Whether the agent has a reason to be silent: a question is open, or a tool runs."""
        return bool(self.asked or self._open)

    def give_up_asking(self) -> None:
        """The prompt is over: nobody there waits for an answer any more."""
        self._is_over = True
        self._question.cancel()

    async def take(self, heard: Heard) -> None:
        """Raises Parked when a question stays unanswered for long."""
        self.at = anyio.current_time()
        if not isinstance(heard, Update):
            await self._permit(*heard)
            return
        match heard.session_update:
            case "agent_message_chunk":
                self._say(heard)
            case "agent_thought_chunk":
                self._turn.emit(Delta(text_of(heard.content), "reasoning"))
            case "tool_call" | "tool_call_update":
                await self._change(heard)
            case "plan":
                if plan := plan_of(heard.entries):
                    self._turn.emit(Delta(plan, "note"))
            case _:
                pass

    async def speak(self) -> None:
        """What was said up to here is one reply."""
        text, self._text = "".join(self._text), []
        if text.strip():
            self._spoken += 1
            await self._ledger.said(f"{self.prompt}/{self._own}/{self._spoken}", bounded(text, LONGEST))

    async def settle(self, why: str) -> None:
        """The prompt is over: of what is open, no more will be told than this."""
        for call in sorted(self._open):
            await self._end(call, deed_of(self._calls[call], self.prompt), Outcome(why, failed=True))
        await self._ledger.flush()

    def _say(self, update: Update) -> None:
        text = text_of(update.content)
        is_next = bool(self._text and self._message and update.message_id) and self._message != update.message_id
        self._message = update.message_id
        for piece in ("\n\n", text) if is_next else (text,):
            if piece:
                self._text.append(piece)
                self._turn.emit(Delta(piece))
                failpoint("J5")

    async def _known(self, told: ToolCall) -> tuple[Wanted, Deed]:
        """The call as it stands after this. Words said before a call are a reply of their own."""
        before = self._calls.get(told.tool_call_id)
        wanted = self._calls[told.tool_call_id] = changed(before, told)
        deed = deed_of(wanted, self.prompt)
        if before is None:
            await self.speak()
            self._turn.emit(Delta(deed.tool, "call"))
        return wanted, deed

    async def _change(self, told: ToolCall) -> None:
        if not told.tool_call_id or told.tool_call_id in self._ended:
            return
        wanted, deed = await self._known(told)
        if wanted.status in ENDS:
            await self._end(wanted.id, deed, outcome_of(wanted))
        elif wanted.id in self._open:
            if told.status == "in_progress":
                await self._ledger.begins(deed.item)
        elif wanted.status == "in_progress" or (wanted.is_clear and not self._open):
            # While it is pending, the agent may still ask for it.
            self._open.add(wanted.id)
            await self._ledger.began(deed, is_sure=wanted.status == "in_progress")

    async def _end(self, call: str, deed: Deed, outcome: Outcome) -> None:
        self._calls.pop(call, None)
        self._open.discard(call)
        self._ended.add(call)
        await self._ledger.ended(deed, outcome)

    async def _permit(self, number: Id, permission: Permission) -> None:
        """One question at a time; what else is said waits meanwhile."""
        wanted, deed = await self._known(permission.tool_call)
        self.asked.append(number)
        call = await self._ledger.began(deed, is_held=True)
        self._open.add(wanted.id)
        verdict: Verdict = "deny"
        with anyio.CancelScope() as self._question:
            if self._is_over:
                self._question.cancel()
            verdict = self._settled(call) or await self._verdict(call, wanted)
        if self._question.cancelled_caught:
            await self._turn.record(Answered(f"ask-{call.id}", NO), key=f"answer/ask-{call.id}")
            await self._end(wanted.id, deed, Outcome(_GAVE_UP, failed=True))
            return
        is_allowed = verdict == "allow"
        option = choose(permission.options, is_allowed=is_allowed)
        if is_allowed and option:
            await self._ledger.begins(deed.item)
        else:
            await self._end(wanted.id, deed, Outcome(_NOT_ONCE if is_allowed else DENIED, failed=True))
        await self._answer(number, option or choose(permission.options, is_allowed=False))

    async def _verdict(self, call: Call, wanted: Wanted) -> Verdict:
        return await self._asking.verdict(call, request_of(wanted, self._turn.session.workspace))

    async def _answer(self, number: Id, option: Option | None) -> None:
        await self._agent.answer(number, option.option_id if option else "")
        self.asked.remove(number)
        self.at = anyio.current_time()

    def _settled(self, call: Call) -> Verdict | None:
        found = next((one for one in self._answered if one.is_of(call)), None)
        if found is None:
            return None
        self._answered.remove(found)
        return found.verdict
