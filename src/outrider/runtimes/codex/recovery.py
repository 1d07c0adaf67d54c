"""How the model called something, from what Codex keeps of a thread: one taken up again tells it nowhere else.

Taking a turn up again: what Codex did of it is written down once, and every call that was left open is closed.
"""

import logging
import os
from collections.abc import Sequence
from pathlib import Path

import anyio
import msgspec
from msgspec import Struct

from outrider.core.approvals import Verdict
from outrider.core.plan import State
from outrider.core.ports import Tools, Turn
from outrider.core.prompt import UNKNOWN
from outrider.core.types import Call
from outrider.runtimes.codex.app_server import AppServer
from outrider.runtimes.codex.notifications import call_of_item, is_finished, outcome_of_item
from outrider.runtimes.codex.protocol import CodexError, CodexTurn, RawItem, ThreadItem, parse_client_id, parse_turns
from outrider.runtimes.codex.threads import NAME, OpenThread, ends_unanswered
from outrider.runtimes.codex.tools import ResultCapture, is_our_call
from outrider.runtimes.external.approvals import ApprovalGate
from outrider.runtimes.external.recorder import NOT_ANSWERED_YET, CallOutcome, TurnRecorder, external_call_id
from outrider.runtimes.jsonrpc.errors import RpcError
from outrider.runtimes.tool_runner import ToolRunner, verdict_of

_ROLLOUT_TAIL = 1 << 20
_ROLLOUT_TRIES = 10
_ROLLOUT_PAUSE = 0.1
log = logging.getLogger("outrider.codex")


class _RolloutLine(Struct):
    type: str = ""
    payload: RawItem | None = None


async def find_rollout_call(path: str, call: str) -> RawItem | None:
    """The call of this id, among the newest; None when it is not found within a second."""
    for _ in range(_ROLLOUT_TRIES if path else 0):
        if found := await anyio.to_thread.run_sync(_search_rollout, path, call):
            return found
        await anyio.sleep(_ROLLOUT_PAUSE)
    return None


def _search_rollout(path: str, call: str) -> RawItem | None:
    try:
        with Path(path).open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _ROLLOUT_TAIL))
            lines = file.read().split(b"\n")
    except OSError as error:
        log.info("what Codex keeps of its thread cannot be read: %s", error)
        return None
    for line in reversed(lines):
        if call.encode() in line:
            try:
                found = msgspec.json.decode(line, type=_RolloutLine).payload
            except msgspec.DecodeError:
                continue
            if found and found.call_id == call and found.type == "function_call":
                return found
    return None


_MAX_TURNS = 5
_FINAL_PHASE = "final_answer"


class RecoveredTurn(Struct):
    """How far Codex had come."""

    status: str = ""
    """Of the turn there; empty when it never heard of it."""
    error: CodexError | None = None
    notes: list[str] = []
    """What it is to be told about calls that were cut off."""
    answers: dict[str, Verdict] = {}
    """What a person answered about calls that were cut off, by what was asked."""
    is_suspended: bool = False
    """A question is open again: nothing is to be done until it is answered."""


def approval_key(call: Call) -> str:
    """By which what was asked is known when it is asked again: what would run, and where."""
    return f"{call.tool}\n{msgspec.json.encode(call.args, order='sorted').decode()}"


async def find_turn(server: AppServer, turn: Turn, thread: OpenThread) -> CodexTurn | None:
    """What Codex knows of the turn that is open in our journal; None when it knows nothing of it."""
    state = turn.state()
    bound = state.threads.get(NAME)
    if thread.is_new or bound is None or not (thread.is_resumed or state.steps):
        return None
    turns = await _newest_turns(server, thread)
    inputs = {seq for seq, _ in turn.transcript().unseen()}
    for found in turns:
        given = {parse_client_id(item.client_id) for item in found.items}
        if given & inputs or (state.steps and bound.turn and found.id == bound.turn):
            return found
    return None


async def newest_input(server: AppServer, turn: Turn, thread: OpenThread) -> int:
    """The number of the last input that the thread was given, where that matters; 0 when it is not known."""
    turns = await _newest_turns(server, thread) if ends_unanswered(turn) and not thread.is_new else ()
    return max((parse_client_id(item.client_id) for found in turns for item in found.items), default=0)


async def _newest_turns(server: AppServer, thread: OpenThread) -> Sequence[CodexTurn]:
    params = {"threadId": thread.id, "itemsView": "full", "limit": _MAX_TURNS}
    try:
        return parse_turns(await server.request("thread/turns/list", params))
    except RpcError as error:
        if "not materialized" in error.message or "no rollout" in error.message:
            return ()
        raise


class Recovery:
    """One taking up."""

    def __init__(self, turn: Turn, ledger: TurnRecorder, calls: ToolRunner, asking: ApprovalGate) -> None:
        self._turn = turn
        self._recorder = ledger
        self._tool_runner = calls
        self._approvals = asking

    async def run(self, found: CodexTurn | None) -> RecoveredTurn:
        """Close what is open, record what is missing, in the order in which it happened."""
        items = found.items if found else []
        status = "completed" if _has_final_answer(items) else found.status if found else ""
        standing = RecoveredTurn(status, found.error if found else None, [], {})
        tools = self._tool_runner.tools_of(self._turn)
        state = self._turn.state()
        for call in state.calls:
            await self._close(call, state, items, tools, standing)
        if standing.is_suspended:
            return standing
        for item in items:
            await self._record_item(item)
        await self._recorder.flush()
        if items:
            await self._recorder.close()
        return standing

    async def _close(
        self, call: Call, state: State, items: Sequence[ThreadItem], tools: Tools, recovered: RecoveredTurn
    ) -> None:
        item = next((item for item in items if external_call_id(NAME, item.id) == call.id), None)
        if is_our_call(call, tools):
            await self._finish_own_call(call, state, recovered)
        elif item and call_of_item(item) and is_finished(item):
            await self._recorder.finish_inherited_call(call, outcome_of_item(item), item.id)
        elif call.id in state.answers and call.id not in state.begun:
            verdict = verdict_of(state.answers[call.id])
            recovered.answers[approval_key(call)] = verdict
            said = "the person allowed it" if verdict == "allow" else "it was not allowed"
            recovered.notes.append(f"You wanted to run {_describe_call(call)}. It was not run; {said}.")
            await self._recorder.finish_inherited_call(call, CallOutcome(f"{NOT_ANSWERED_YET}; {said}", failed=True))
        else:
            recovered.notes.append(
                f"Whether this was done, and how far, is not known: {_describe_call(call)}. Check it."
            )
            await self._recorder.finish_inherited_call(call, CallOutcome(UNKNOWN, failed=True))

    async def _finish_own_call(self, call: Call, state: State, recovered: RecoveredTurn) -> None:
        heard = ResultCapture(self._turn)
        if call.id in state.begun:
            await self._tool_runner.reconcile(heard, call)
        else:
            await self._tool_runner.run(heard, call)
            if heard.result is None and await self._approvals.deny_unreachable():
                await self._tool_runner.run(heard, call)
        if heard.result is None:
            recovered.is_suspended = True
            return
        recovered.notes.append(f"Your call {_describe_call(call)} was carried out. Its result:\n{heard.result.text}")

    async def _record_item(self, item: ThreadItem) -> None:
        if item.type == "userMessage":
            self._recorder.saw = max(self._recorder.saw, parse_client_id(item.client_id))
        elif item.type == "agentMessage":
            await self._recorder.message_finished(item.id, item.text or "")
        elif (deed := call_of_item(item)) and is_finished(item):
            await self._recorder.call_finished(deed, outcome_of_item(item))


def _has_final_answer(items: Sequence[ThreadItem]) -> bool:
    """Whether its last words were the answer: nothing was left to do there but to say so."""
    last = next((item for item in reversed(items) if item.type != "reasoning"), ThreadItem())
    return last.type == "agentMessage" and last.phase == _FINAL_PHASE


def _describe_call(call: Call) -> str:
    return f"`{call.args.get('command') or call.tool}`"
