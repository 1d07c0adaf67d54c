"""What Codex asks while it carries a turn: put to rules, grants and people, or run by a tool of ours."""

import logging
from collections.abc import Awaitable, Callable
from functools import partial

import anyio
import msgspec
from anyio.abc import TaskGroup

from outrider.core.approve import ApprovalRequest as Wanted
from outrider.core.approve import Verdict
from outrider.core.parts import Call
from outrider.core.ports import Turn
from outrider.runtimes.calls import Calls
from outrider.runtimes.codex.fence import Fence
from outrider.runtimes.codex.hearing import Hearing
from outrider.runtimes.codex.items import DECLINED, parse_deed
from outrider.runtimes.codex.process import Server
from outrider.runtimes.codex.recover import asked_for
from outrider.runtimes.codex.rollout import find_call
from outrider.runtimes.codex.tools import SERVER, Overheard, parse_call
from outrider.runtimes.codex.watch import Watch
from outrider.runtimes.codex.wire import Item, Wish, parse_wish
from outrider.runtimes.codex.wishes import (
    COMMAND,
    ELICITATION,
    QUESTIONS,
    TOOL_CALL,
    Asker,
    can_be_asked,
    is_self_contained,
    parse_request,
    render_answer,
)
from outrider.runtimes.codex.wishes import parse_deed as deed_of_wish
from outrider.runtimes.jsonrpc import METHOD_NOT_FOUND, Request, RpcError
from outrider.runtimes.mcp import Visit
from outrider.runtimes.outside.asking import Asking, Parked
from outrider.runtimes.outside.ledger import Deed, Ledger, Outcome

SOON = 1.0
"""Seconds after which what was not asked about is taken to be under way."""
Tell = Callable[[str, bool], Awaitable[None]]
"""Gives Codex a text, and whether it tells of a failure."""
log = logging.getLogger("outrider.codex")


class Answering:
    """One turn's questions. Each is answered in a task of its own, one after the other."""

    def __init__(self, turn: Turn, server: Server, ledger: Ledger, hearing: Hearing, watch: Watch) -> None:
        self._turn = turn
        self._server = server
        self._ledger = ledger
        self._hearing = hearing
        self._watch = watch
        self._one = anyio.Lock()
        self._asked: set[str] = set()
        self.answers: dict[str, Verdict] = {}
        """What was answered before the work was interrupted; each holds once."""
        self.park: Callable[[], None] = lambda: None
        """Told when nobody answers."""

    def take(self, request: Request, calls: Calls, asking: Asking, group: TaskGroup) -> None:
        """Answer, some time. Codex waits for it, however long."""
        try:
            wish = parse_wish(request.params)
        except msgspec.DecodeError as error:
            log.warning("%s was not understood: %s", request.method, error)
            group.start_soon(self._refuse, request, f"not understood: {error}")
            return
        if request.method == TOOL_CALL:
            deed = parse_call(wish.call_id, wish.tool, wish.arguments)
            group.start_soon(self._run, deed, partial(self._told, request), calls, asking)
        elif request.method == ELICITATION and wish.server_name == SERVER and wish.thread_id in self._server.guests:
            # Whether the call may run is asked by us, when it comes.
            group.start_soon(self._server.answer, request.id, render_answer(ELICITATION, wish, "allow"))
        elif request.method in QUESTIONS and can_be_asked(request.method, wish):
            self._asked.add(wish.item_id)
            group.start_soon(self._decide, request, wish, asking)
        elif request.method == ELICITATION:
            group.start_soon(self._server.answer, request.id, {"action": "decline"})
        else:
            log.warning("Codex asked for %s, which Outrider does not know", request.method)
            group.start_soon(self._refuse, request, "Outrider does not do this")

    def serve(self, visit: Visit, calls: Calls, asking: Asking, group: TaskGroup) -> None:
        """Run a tool of ours for a call that came over MCP."""
        if not visit.id:
            log.warning("this Codex does not say which call of it a call over MCP is, so none is run")
            visit.answer("not run: it did not say which call this is (_meta.callId)", failed=True)
            return

        async def told(text: str, failed: bool) -> None:
            visit.answer(text, failed=failed)

        group.start_soon(self._run, parse_call(visit.id, visit.tool, visit.args), told, calls, asking)

    async def surely(self, item: str) -> None:
        """It began; unless it is asked about at once, nothing keeps it from being done."""
        await anyio.sleep(SOON)
        if item not in self._asked:
            async with self._hearing.writing:
                await self._ledger.begins(item)

    async def _refuse(self, request: Request, why: str) -> None:
        await self._server.refuse(request.id, RpcError(METHOD_NOT_FOUND, why))

    async def _decide(self, request: Request, wish: Wish, asking: Asking) -> None:
        self._watch.owes(anyio.current_time())
        try:
            async with self._one:
                await self._decide_one(request, wish, asking)
        except Parked:
            self.park()
        finally:
            self._watch.gave(anyio.current_time())

    async def _decide_one(self, request: Request, wish: Wish, asking: Asking) -> None:
        workspace = self._turn.session.workspace
        item = self._item_of(wish)
        deed = (parse_deed(item) if item else None) or deed_of_wish(request.method, wish, request.id, workspace)
        async with self._hearing.writing:
            call = await self._ledger.began(deed, is_held=True)
        fence = self._server.fences.get(wish.thread_id) or Fence()
        called = self._hearing.called(wish.item_id)
        if called is None and request.method == COMMAND and fence.holds:
            called = await find_call(fence.rollout, wish.item_id)
        asker = Asker(workspace, fence, called)
        wanted = parse_request(request.method, wish, item, asker)
        verdict = self.answers.pop(asked_for(call), None)
        if verdict is None:
            verdict = await self._verdict(call, wanted, asking)
        async with self._hearing.writing:
            if verdict == "allow":
                await self._ledger.begins(deed.item)
            if verdict != "allow":
                await self._ledger.ended(deed, Outcome(DECLINED, failed=True))
            elif is_self_contained(request.method):
                await self._ledger.ended(deed, Outcome("allowed"))
        await self._server.answer(request.id, render_answer(request.method, wish, verdict))

    async def _verdict(self, call: Call, wanted: Wanted, asking: Asking) -> Verdict:
        try:
            return await asking.verdict(call, wanted)
        except Parked:
            if call.id not in self._turn.state().begun:
                raise
            # It was asked about so late that it counts as begun: such a call cannot be left to wait.
            return "deny"

    def _item_of(self, wish: Wish) -> Item | None:
        """What the question is about. One of an MCP server does not say; it is the server's newest call."""
        if wish.item_id:
            return self._hearing.items.get(wish.item_id)
        items = reversed(self._hearing.items.values())
        found = next((item for item in items if wish.server_name and item.server == wish.server_name), None)
        if found:
            self._asked.add(found.id)
        return found

    async def _told(self, request: Request, text: str, failed: bool) -> None:
        content = {"contentItems": [{"type": "inputText", "text": text}], "success": not failed}
        await self._server.answer(request.id, content)

    async def _run(self, deed: Deed, tell: Tell, calls: Calls, asking: Asking) -> None:
        self._watch.owes(anyio.current_time())
        try:
            async with self._one:
                await self._run_one(deed, tell, calls, asking)
        except Parked:
            self.park()
        finally:
            self._watch.gave(anyio.current_time())

    async def _run_one(self, deed: Deed, tell: Tell, calls: Calls, asking: Asking) -> None:
        if self._ledger.is_known(deed.item):
            # Codex gave it up while it waited for its turn.
            await tell("not run: it was told to be over", True)
            return
        async with self._hearing.writing:
            call: Call = await self._ledger.began(deed, is_held=True)
        heard = Overheard(self._turn)
        await calls.run(heard, call)
        if heard.result is None:
            await asking.answer_for_nobody()
            await asking.answered(call)
            await calls.run(heard, call)
        async with self._hearing.writing:
            await self._ledger.returned(deed.item)
        result = heard.result
        await tell(result.text if result else "it came to nothing", result is None or result.failed)
