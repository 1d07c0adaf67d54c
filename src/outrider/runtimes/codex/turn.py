"""Carries one turn in a thread of Codex: from what it was given last to where nothing is left to do."""

import logging
import math
from base64 import b64encode
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import anyio
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectReceiveStream

from outrider.core.errors import Unavailable
from outrider.core.events import Bound
from outrider.core.ports import Turn
from outrider.core.prompt import UserMessage
from outrider.runtimes.calls import Calls
from outrider.runtimes.codex.answering import Answering
from outrider.runtimes.codex.faults import is_login, of_fault, of_rpc, told
from outrider.runtimes.codex.hearing import Hearing
from outrider.runtimes.codex.items import is_sure
from outrider.runtimes.codex.leftovers import Leftovers
from outrider.runtimes.codex.lending import Lending
from outrider.runtimes.codex.process import Line, Server
from outrider.runtimes.codex.recover import Recovery, Standing, client_id, find_turn, newest_input
from outrider.runtimes.codex.threads import NAME, Opened, Terms, model_to_name, open_thread, tell_past
from outrider.runtimes.codex.watch import Watch
from outrider.runtimes.codex.wire import CodexTurn, parse_is_active, parse_item, parse_told, parse_turn_id
from outrider.runtimes.jsonrpc import ChildGone, NoAnswer, Notification, Request, RpcError
from outrider.runtimes.kit import Kit
from outrider.runtimes.mcp import Visit
from outrider.runtimes.outside.asking import Asking, News
from outrider.runtimes.outside.ledger import GOES_ON, Ledger

OBEY = 5.0
"""Seconds it has to stop when it is told to."""
_PROBE = 5.0
_GO_ON = (
    "[Outrider: the work on this was interrupted.{notes} Go on with what you were asked to do; do not repeat what is "
    "done already.]"
)
Visitors = MemoryObjectReceiveStream[Visit]
"""The calls of our tools that came over MCP."""
log = logging.getLogger("outrider.codex")


class Carrying:
    """One carrying of one turn."""

    def __init__(self, kit: Kit, calls: Calls, server: Server, turn: Turn, news: News, asking: Asking) -> None:
        self._kit = kit
        self._calls = calls
        self._server = server
        self._turn = turn
        self._news = news
        self._asking = asking
        self._ledger = Ledger(turn, NAME, kit.place.redact, kit.blobs.put)
        settings = kit.config.codex
        self._watch = Watch(anyio.current_time(), settings.seconds, settings.quiet)
        self._hearing = Hearing(turn, self._ledger, self._watch)
        self._answering = Answering(turn, server, self._ledger, self._hearing, self._watch)
        self._leftovers = Leftovers(turn.session.workspace)
        self._thread = ""
        self._given = 0
        """The newest input that was sent there."""
        self._arrived = anyio.Event()
        self._scope = anyio.CancelScope()
        self._failure: Unavailable | None = None
        self._is_parked = False
        self._is_over = False

    async def run(self, lending: Lending) -> None:
        terms = Terms(self._kit.config, self._calls.tools_of(self._turn), lending)
        opened = await open_thread(self._server, self._turn, terms)
        self._thread = opened.id
        self._ledger.model = opened.model
        with self._server.listening(opened.id) as line, self._visited() as visitors:
            found = await find_turn(self._server, self._turn, opened)
            standing = await Recovery(self._turn, self._ledger, self._calls, self._asking).run(found)
            if standing.waits:
                return
            if standing.status == "failed":
                raise of_fault(standing.fault)
            inputs = [(seq, words) for seq, words in self._turn.transcript().unseen() if seq > self._ledger.saw]
            if not inputs and standing.status == "completed":
                return
            await tell_past(self._server, self._turn, opened, await newest_input(self._server, self._turn, opened))
            self._answering.answers = standing.answers
            await self._begin(opened, self._text(opened, standing, inputs), inputs)
            await self._go_on(line, visitors)

    @contextmanager
    def _visited(self) -> Generator[Visitors]:
        """Calls of our tools over MCP belong to this turn from now on; they wait until it is heard."""
        guest = self._server.guests.get(self._thread)
        visits, visitors = anyio.create_memory_object_stream[Visit](math.inf)
        with visits, visitors, guest.served(visits.send_nowait) if guest else nullcontext():
            yield visitors

    def _text(self, opened: Opened, standing: Standing, inputs: Sequence[tuple[int, UserMessage]]) -> str:
        """What it is told before the person's words: that it was interrupted, if it was."""
        is_cut = standing.status == "interrupted" or bool(standing.notes) or not inputs
        notes = "".join(f"\n- {note}" for note in standing.notes)
        return _GO_ON.format(notes=f"{notes}\n" if notes else "") if is_cut else ""

    async def _begin(self, opened: Opened, text: str, inputs: Sequence[tuple[int, UserMessage]]) -> None:
        saw = inputs[-1][0] if inputs else self._ledger.saw
        if opened.is_new:
            await self._turn.record(Bound(NAME, opened.id, saw=saw))
        params: dict[str, Any] = {"threadId": opened.id, "input": self._rendered(text, inputs)}
        if inputs:
            params["clientUserMessageId"] = client_id(saw)
        if model := await model_to_name(self._server, self._turn, self._kit.config, opened):
            params["model"] = self._ledger.model = self._server.loaded[opened.id] = model
        try:
            self._hearing.id = parse_turn_id(await self._server.request("turn/start", params))
        except RpcError as error:
            raise of_rpc(error, "the turn") from error
        except BaseException:
            # Whether it works on this is not known, and it cannot be told to stop.
            self._server.retire()
            raise
        self._watch.begins(anyio.current_time())
        self._given = self._ledger.saw = saw
        try:
            await self._turn.record(Bound(NAME, opened.id, self._hearing.id, saw))
        except BaseException:
            self._server.retire()
            raise

    def _rendered(self, text: str, inputs: Sequence[tuple[int, UserMessage]]) -> list[dict[str, Any]]:
        said = [{"type": "text", "text": text}] if text else []
        for _, words in inputs:
            said.append({"type": "text", "text": words.text or "(no words)"})
            for image in words.images:
                content = b64encode(self._kit.blobs.get(image.blob)).decode()
                said.append({"type": "image", "url": f"data:{image.media};base64,{content}"})
        return said

    async def _go_on(self, line: Line, visitors: Visitors) -> None:
        """Hear it out. Whatever ends this early, it does not go on there unheard."""
        ended: CodexTurn | None = None
        try:
            try:
                ended = await self._hear_out(line, visitors)
            finally:
                if not self._is_over:
                    with anyio.CancelScope(shield=True):
                        await self._halt(line)
        except (ChildGone, Unavailable):
            await self._keep()
            raise
        if self._is_parked:
            return
        if self._failure or ended is None:
            await self._keep()
            raise self._failure or told("Codex stopped")
        await self._conclude(ended)

    async def _hear_out(self, line: Line, visitors: Visitors) -> CodexTurn | None:
        try:
            async with anyio.create_task_group() as group:
                self._answering.park = self._park
                self._hearing.unsure = lambda item: _start(group, self._answering.surely, item)
                group.start_soon(self._news.listen, self._arrive)
                group.start_soon(self._steer)
                group.start_soon(self._keep_watch)
                group.start_soon(self._serve, visitors, group)
                ended = None
                with self._scope:
                    ended = await self._hear(line, group)
                group.cancel_scope.cancel()
                return ended
        except ExceptionGroup as several:
            raise several.exceptions[0] from several
        return None

    async def _hear(self, line: Line, group: TaskGroup) -> CodexTurn:
        while True:
            match await line.next():
                case Request() as request:
                    self._answering.take(request, self._calls, self._asking, group)
                case Notification() as notification:
                    if ended := await self._hearing.take(notification):
                        self._is_over = True
                        return ended

    async def _serve(self, visitors: Visitors, group: TaskGroup) -> None:
        async for visit in visitors:
            self._answering.serve(visit, self._calls, self._asking, group)

    async def _conclude(self, ended: CodexTurn) -> None:
        match ended.status:
            case "completed":
                await self._ledger.close(GOES_ON)
            case "failed":
                await self._keep()
                failed = of_fault(ended.error or self._hearing.fault)
                if is_login(str(failed)):
                    # One that is started after a login knows of it.
                    self._server.retire()
                raise failed
            case _:
                await self._keep()
                raise told("Codex ended the turn before it was done")

    async def _keep(self) -> None:
        """What was done so far stays done."""
        await self._hearing.keep_partial()
        await self._ledger.close()

    def _park(self) -> None:
        self._is_parked = True
        self._scope.cancel()

    def _fail(self, error: Unavailable) -> None:
        self._failure = error
        self._scope.cancel()

    def _arrive(self) -> None:
        self._arrived.set()

    async def _steer(self) -> None:
        """Pass on what arrives meanwhile. What is not taken stays unseen, and begins a turn of its own there."""
        while True:
            inputs = [(seq, words) for seq, words in self._turn.transcript().unseen() if seq > self._given]
            if inputs:
                newest = inputs[-1][0]
                params = {"threadId": self._thread, "expectedTurnId": self._hearing.id}
                more = {"input": self._rendered("", inputs), "clientUserMessageId": client_id(newest)}
                try:
                    await self._server.request("turn/steer", {**params, **more})
                except (RpcError, NoAnswer) as error:
                    log.info("an input was not taken during the turn: %s", error)
                    return
                self._given = newest
                if not self._hearing.has_receipts:
                    self._ledger.saw = newest
            await self._arrived.wait()
            self._arrived = anyio.Event()

    async def _keep_watch(self) -> None:
        """End a turn that takes too long. Silence is no verdict: whether it is alive is asked first."""
        while True:
            now = anyio.current_time()
            match self._watch.due(now):
                case "late":
                    seconds = self._kit.config.codex.seconds
                    self._fail(told(f"Codex worked on this for {seconds} s, the limit of one turn (codex.seconds)"))
                    return
                case "quiet" if not await self._is_alive():
                    self._fail(told("Codex said nothing more after a tool had ended, and did not work on it either"))
                    return
                case "quiet":
                    self._watch.probed(anyio.current_time())
                case "":
                    await anyio.sleep(self._watch.rest(now))

    async def _is_alive(self) -> bool:
        try:
            return parse_is_active(await self._server.request("thread/read", {"threadId": self._thread}, _PROBE))
        except (RpcError, NoAnswer) as error:
            log.warning("Codex does not say whether it works: %s", error)
            return False

    async def _halt(self, line: Line) -> None:
        """Stop it, and what it runs. A process that does not obey, or has had its time, is ended."""
        with anyio.move_on_after(OBEY) as scope:
            try:
                await self._interrupt(line)
            except (RpcError, NoAnswer) as error:
                log.warning("Codex did not stop when told to: %s", error)
                self._server.retire()
            except ChildGone as gone:
                log.info("%s", gone)
        if scope.cancelled_caught:
            log.warning("Codex did not stop within %g s", OBEY)
        if scope.cancelled_caught or self._failure:
            self._server.retire()
        await self._leftovers.clear()

    async def _interrupt(self, line: Line) -> None:
        await self._server.request("turn/interrupt", {"threadId": self._thread, "turnId": self._hearing.id}, OBEY)
        await self._server.request("thread/backgroundTerminals/clean", {"threadId": self._thread}, OBEY)
        running = {id for id, item in self._hearing.items.items() if is_sure(item)}
        is_over = False
        while not is_over or running:
            message = await line.next()
            if message.method == "turn/completed":
                is_over = True
            elif message.method == "item/completed":
                running.discard(parse_item(parse_told(message.params).item).id)


def _start(group: TaskGroup, act: Callable[[str], Coroutine[Any, Any, None]], item: str) -> None:
    group.start_soon(act, item)
