"""Recovery of an interrupted Codex turn: records what Codex did meanwhile, once, and closes every open call.

How the model made a call is read from the rollout, the file in which Codex records a thread: for a resumed thread it is
reported nowhere else.
"""

import logging
import os
import re
from collections.abc import Sequence
from pathlib import Path

import anyio
from msgspec import Struct

from outrider.core.plan import State
from outrider.core.ports import Turn
from outrider.core.prompt import UNKNOWN
from outrider.core.types import Call
from outrider.runtimes.codex.app_server import AppServer
from outrider.runtimes.codex.errors import codex_failed, is_unknown_method
from outrider.runtimes.codex.notifications import call_of_item, is_finished, outcome_of_item
from outrider.runtimes.codex.protocol import (
    CodexError,
    CodexTurn,
    RawItem,
    ThreadItem,
    TurnList,
    parse_client_id,
    parse_rollout_line,
    parse_thread_turns,
    parse_turns,
)
from outrider.runtimes.codex.threads import NAME, OpenThread, ends_unanswered
from outrider.runtimes.codex.tools import is_our_call
from outrider.runtimes.external.approvals import ApprovalGate
from outrider.runtimes.external.recorder import NOT_ANSWERED_YET, CallOutcome, TurnRecorder, external_call_id
from outrider.runtimes.jsonrpc.errors import RpcError
from outrider.runtimes.tool_runner import ToolRunner

_ROLLOUT_TAIL = 1 << 20
_ROLLOUT_TRIES = 10
_ROLLOUT_PAUSE = 0.1
_MAX_TURNS = 5
_IDENTITY = re.compile(r"data\[\d+\](\.(id|items(\[\d+\](\.(type|clientId))?)?))?")
_FINAL_PHASE = "final_answer"
log = logging.getLogger("outrider.codex")


async def find_rollout_call(path: str, call: str) -> RawItem | None:
    """The call of this id among the newest ones; None when it does not appear within a second."""
    for _ in range(_ROLLOUT_TRIES if path else 0):
        if item := await anyio.to_thread.run_sync(_search_rollout, path, call):
            return item
        await anyio.sleep(_ROLLOUT_PAUSE)
    return None


def _search_rollout(path: str, call: str) -> RawItem | None:
    try:
        with Path(path).open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _ROLLOUT_TAIL))
            lines = file.read().split(b"\n")
    except OSError as error:
        log.info("the rollout of the thread cannot be read: %s", error)
        return None
    for line in reversed(lines):
        if call.encode() in line:
            item = parse_rollout_line(line)
            if item.call_id == call and item.type == "function_call":
                return item
    return None


class RecoveredTurn(Struct, frozen=True):
    """How far Codex had come with a turn."""

    status: str = ""
    """Of Codex's turn; empty when it never started."""
    error: CodexError | None = None
    notes: Sequence[str] = ()
    """What Codex is told about calls that were interrupted."""
    is_suspended: bool = False
    """A question is open again, so nothing is done until it is answered."""


async def find_turn(server: AppServer, turn: Turn, thread: OpenThread) -> CodexTurn | None:
    """Codex's turn for the one that is open in our journal; None when there is none."""
    state = turn.state()
    bound = state.threads.get(NAME)
    if thread.is_new or bound is None or not (thread.is_resumed or state.steps):
        return None
    inputs = {seq for seq, _ in turn.transcript().unseen()}
    turns = await _newest_turns(server, thread)
    for candidate in turns.data or ():
        received = {parse_client_id(item.client_id) for item in candidate.items}
        if received & inputs or (state.steps and bound.turn and candidate.id == bound.turn):
            return candidate
    if unread := _unread_identity(turns):
        text = "Outrider cannot read Codex's record of this session ({}), so it cannot tell what Codex did already"
        raise codex_failed(text.format(", ".join(unread)))
    return None


def _unread_identity(turns: TurnList) -> Sequence[str]:
    """What could not be read of that by which a turn is found. Without it, work might be done twice."""
    if turns.data is None:
        return turns.unread or ("data",)
    return [name for name in turns.unread if _IDENTITY.fullmatch(name)]


async def newest_input(server: AppServer, turn: Turn, thread: OpenThread) -> int:
    """The number of the last input that the thread received, where that matters; 0 when it is unknown."""
    turns = await _newest_turns(server, thread) if ends_unanswered(turn) and not thread.is_new else TurnList()
    return max((parse_client_id(item.client_id) for turn in turns.data or () for item in turn.items), default=0)


async def _newest_turns(server: AppServer, thread: OpenThread) -> TurnList:
    params = {"threadId": thread.id, "itemsView": "full", "limit": _MAX_TURNS}
    try:
        return parse_turns(await server.request("thread/turns/list", params))
    except RpcError as error:
        if _has_no_turns(error):
            return TurnList([])
        if not is_unknown_method(error):
            raise
        log.info("this Codex does not list turns by themselves: %s", error.message)
    return await _read_thread(server, thread)


async def _read_thread(server: AppServer, thread: OpenThread) -> TurnList:
    """All turns of the thread, for a Codex that does not list the newest ones. Raises CodexFailed when it cannot."""
    try:
        return parse_thread_turns(await server.request("thread/read", {"threadId": thread.id, "includeTurns": True}))
    except RpcError as error:
        if _has_no_turns(error):
            return TurnList([])
        if not is_unknown_method(error):
            raise
    text = "this version of Codex cannot say what it has done in this session, so Outrider cannot continue it"
    raise codex_failed(f"{text}; update Codex, or start another session")


def _has_no_turns(error: RpcError) -> bool:
    return "not materialized" in error.message or "no rollout" in error.message


class Recovery:
    """Recovers one turn."""

    def __init__(self, turn: Turn, recorder: TurnRecorder, tool_runner: ToolRunner, approvals: ApprovalGate) -> None:
        self._turn = turn
        self._recorder = recorder
        self._tool_runner = tool_runner
        self._approvals = approvals

    async def run(self, codex_turn: CodexTurn | None) -> RecoveredTurn:
        """Close the open calls and record what is missing, in the order in which it happened."""
        items = codex_turn.items if codex_turn else []
        status = codex_turn.status if codex_turn else ""
        error = codex_turn.error if codex_turn else None
        notes: list[str] = []
        is_suspended = False
        tools = self._tool_runner.tools_of(self._turn)
        state = self._turn.state()
        for call in state.calls:
            if not is_our_call(call, tools):
                notes += await self._close(call, state, items)
            elif note := await self._finish_own_call(call, state):
                notes.append(note)
            else:
                is_suspended = True
        if not is_suspended:
            for item in items:
                await self._record_item(item)
            await self._recorder.flush()
            if items:
                await self._recorder.close()
        return RecoveredTurn("completed" if _has_final_answer(items) else status, error, notes, is_suspended)

    async def _close(self, call: Call, state: State, items: Sequence[ThreadItem]) -> Sequence[str]:
        """Record the outcome of a call of Codex, and return what Codex is to be told about it."""
        item = next((item for item in items if external_call_id(NAME, item.id) == call.id), None)
        reported = call_of_item(item) if item else None
        if item and reported and is_finished(item):
            await self._recorder.finish_inherited_call(call, outcome_of_item(item), reported)
            return ()
        answers = state.answers_about(call.id)
        if answers and call.id not in state.begun:
            self._approvals.remember(answers)
            answer = answers[-1].decision.reason or "the person allowed it"
            outcome = CallOutcome(f"{NOT_ANSWERED_YET}; {answer}", failed=True)
            await self._recorder.finish_inherited_call(call, outcome)
            return (f"You wanted to run {_describe_call(call)}. It was not run; {answer}.",)
        await self._recorder.finish_inherited_call(call, CallOutcome(UNKNOWN, failed=True))
        return (f"Whether this was done, and how far, is not known: {_describe_call(call)}. Check it.",)

    async def _finish_own_call(self, call: Call, state: State) -> str:
        """Run or reconcile a call of one of our tools; a note with its result, empty when a question is open."""
        if call.id in state.begun:
            result = await self._tool_runner.reconcile(self._turn, call)
        else:
            result = await self._tool_runner.run(self._turn, call)
            while result is None and await self._approvals.deny_unreachable():
                result = await self._tool_runner.run(self._turn, call)
        return f"Your call {_describe_call(call)} was run. Its result:\n{result.text}" if result else ""

    async def _record_item(self, item: ThreadItem) -> None:
        if item.type == "userMessage":
            self._recorder.input_seen(parse_client_id(item.client_id))
        elif item.type == "agentMessage":
            await self._recorder.message_finished(item.id, item.text or "")
        elif (call := call_of_item(item)) and is_finished(item):
            await self._recorder.call_finished(call, outcome_of_item(item))


def _has_final_answer(items: Sequence[ThreadItem]) -> bool:
    """Whether the last item is the final answer: then only the end of the turn was not reported."""
    last = next((item for item in reversed(items) if item.type != "reasoning"), ThreadItem())
    return last.type == "agentMessage" and last.phase == _FINAL_PHASE


def _describe_call(call: Call) -> str:
    return f"`{call.args.get('command') or call.tool}`"
