"""Taking a turn up again: what Codex did of it is written down once, and every call that was left open is closed."""

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from outrider.core.approve import Verdict
from outrider.core.parts import Call
from outrider.core.plan import State
from outrider.core.ports import Tools, Turn
from outrider.core.prompt import UNKNOWN
from outrider.runtimes.calls import Calls, meaning
from outrider.runtimes.codex.items import is_over, outcome, parse_deed
from outrider.runtimes.codex.process import Server
from outrider.runtimes.codex.threads import NAME, Opened, has_unanswered
from outrider.runtimes.codex.tools import Overheard, is_ours
from outrider.runtimes.codex.wire import CodexTurn, Fault, Item, parse_turns
from outrider.runtimes.jsonrpc import RpcError
from outrider.runtimes.outside.asking import Asking
from outrider.runtimes.outside.ledger import NOT_ALLOWED_YET, Ledger, Outcome, call_id

_MARK = "outrider-"
_TURNS = 5
_FINAL = "final_answer"


class Standing(Struct):
    """How far Codex had come."""

    status: str = ""
    """Of the turn there; empty when it never heard of it."""
    fault: Fault | None = None
    notes: list[str] = []
    """What it is to be told about calls that were cut off."""
    answers: dict[str, Verdict] = {}
    """What a person answered about calls that were cut off, by what was asked."""
    waits: bool = False
    """A question is open again: nothing is to be done until it is answered."""


def client_id(seq: int) -> str:
    """By which an input is known again."""
    return f"{_MARK}{seq}"


def parse_client_id(text: str | None) -> int:
    """The input's number; 0 when it is none of ours."""
    number = (text or "").removeprefix(_MARK)
    return int(number) if text and text.startswith(_MARK) and number.isdecimal() else 0


def asked_for(call: Call) -> str:
    """By which what was asked is known when it is asked again: what would run, and where."""
    return f"{call.tool}\n{msgspec.json.encode(call.args, order='sorted').decode()}"


async def find_turn(server: Server, turn: Turn, opened: Opened) -> CodexTurn | None:
    """What Codex knows of the turn that is open in our journal; None when it knows nothing of it."""
    state = turn.state()
    bound = state.threads.get(NAME)
    if opened.is_new or bound is None or not (opened.is_taken_up or state.steps):
        return None
    turns = await _newest_turns(server, opened)
    inputs = {seq for seq, _ in turn.transcript().unseen()}
    for found in turns:
        given = {parse_client_id(item.client_id) for item in found.items}
        if given & inputs or (state.steps and bound.turn and found.id == bound.turn):
            return found
    return None


async def newest_input(server: Server, turn: Turn, opened: Opened) -> int:
    """The number of the last input that the thread was given, where that matters; 0 when it is not known."""
    turns = await _newest_turns(server, opened) if has_unanswered(turn) and not opened.is_new else ()
    return max((parse_client_id(item.client_id) for found in turns for item in found.items), default=0)


async def _newest_turns(server: Server, opened: Opened) -> Sequence[CodexTurn]:
    params = {"threadId": opened.id, "itemsView": "full", "limit": _TURNS}
    try:
        return parse_turns(await server.request("thread/turns/list", params))
    except RpcError as error:
        if "not materialized" in error.message or "no rollout" in error.message:
            return ()
        raise


class Recovery:
    """One taking up."""

    def __init__(self, turn: Turn, ledger: Ledger, calls: Calls, asking: Asking) -> None:
        self._turn = turn
        self._ledger = ledger
        self._calls = calls
        self._asking = asking

    async def run(self, found: CodexTurn | None) -> Standing:
        """Close what is open, record what is missing, in the order in which it happened."""
        items = found.items if found else []
        status = "completed" if _is_answered(items) else found.status if found else ""
        standing = Standing(status, found.error if found else None, [], {})
        tools = self._calls.tools_of(self._turn)
        state = self._turn.state()
        for call in state.calls:
            await self._close(call, state, items, tools, standing)
        if standing.waits:
            return standing
        for item in items:
            await self._retell(item)
        await self._ledger.flush()
        if items:
            await self._ledger.close()
        return standing

    async def _close(self, call: Call, state: State, items: Sequence[Item], tools: Tools, standing: Standing) -> None:
        item = next((item for item in items if call_id(NAME, item.id) == call.id), None)
        if is_ours(call, tools):
            await self._settle_own(call, state, standing)
        elif item and parse_deed(item) and is_over(item):
            await self._ledger.settle(call, outcome(item), item.id)
        elif call.id in state.answers and call.id not in state.begun:
            verdict = meaning(state.answers[call.id])
            standing.answers[asked_for(call)] = verdict
            said = "the person allowed it" if verdict == "allow" else "it was not allowed"
            standing.notes.append(f"You wanted to run {_shown(call)}. It was not run; {said}.")
            await self._ledger.settle(call, Outcome(f"{NOT_ALLOWED_YET}; {said}", failed=True))
        else:
            standing.notes.append(f"Whether this was done, and how far, is not known: {_shown(call)}. Check it.")
            await self._ledger.settle(call, Outcome(UNKNOWN, failed=True))

    async def _settle_own(self, call: Call, state: State, standing: Standing) -> None:
        heard = Overheard(self._turn)
        if call.id in state.begun:
            await self._calls.settle(heard, call)
        else:
            await self._calls.run(heard, call)
            if heard.result is None and await self._asking.answer_for_nobody():
                await self._calls.run(heard, call)
        if heard.result is None:
            standing.waits = True
            return
        standing.notes.append(f"Your call {_shown(call)} was carried out. Its result:\n{heard.result.text}")

    async def _retell(self, item: Item) -> None:
        if item.type == "userMessage":
            self._ledger.saw = max(self._ledger.saw, parse_client_id(item.client_id))
        elif item.type == "agentMessage":
            await self._ledger.said(item.id, item.text or "")
        elif (deed := parse_deed(item)) and is_over(item):
            await self._ledger.ended(deed, outcome(item))


def _is_answered(items: Sequence[Item]) -> bool:
    """Whether its last words were the answer: nothing was left to do there but to say so."""
    last = next((item for item in reversed(items) if item.type != "reasoning"), Item())
    return last.type == "agentMessage" and last.phase == _FINAL


def _shown(call: Call) -> str:
    return f"`{call.args.get('command') or call.tool}`"
