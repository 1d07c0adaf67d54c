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
from outrider.runtimes.base import RuntimeContext
from outrider.runtimes.codex.app_server import AppServer, ThreadMessages
from outrider.runtimes.codex.approvals import ServerRequests
from outrider.runtimes.codex.errors import codex_failed, is_login_error, request_failed, turn_failed
from outrider.runtimes.codex.launch import SandboxLeftovers
from outrider.runtimes.codex.notifications import NotificationReader, is_running
from outrider.runtimes.codex.protocol import (
    CodexTurn,
    client_id,
    parse_is_active,
    parse_item,
    parse_notification,
    parse_turn_id,
)
from outrider.runtimes.codex.recovery import RecoveredTurn, Recovery, find_turn, newest_input
from outrider.runtimes.codex.threads import NAME, OpenThread, ThreadOptions, inject_history, model_override, open_thread
from outrider.runtimes.codex.tools import ToolProvider
from outrider.runtimes.codex.watchdog import TurnWatchdog
from outrider.runtimes.external.approvals import ApprovalGate, JournalWatcher
from outrider.runtimes.external.recorder import CONTINUES_IN_BACKGROUND, TurnRecorder
from outrider.runtimes.jsonrpc.connection import RpcNotification, RpcRequest
from outrider.runtimes.jsonrpc.errors import ProcessExited, RequestTimeout, RpcError
from outrider.runtimes.mcp_server import PendingCall
from outrider.runtimes.tool_runner import ToolRunner

INTERRUPT_TIMEOUT = 5.0
"""Seconds it has to stop when it is told to."""
_ALIVE_TIMEOUT = 5.0
_RESUME_NOTE = (
    "[Outrider: the work on this was interrupted.{notes} Go on with what you were asked to do; do not repeat what is "
    "done already.]"
)
McpCalls = MemoryObjectReceiveStream[PendingCall]
"""The calls of our tools that came over MCP."""
log = logging.getLogger("outrider.codex")


class CodexTurnRun:
    """One carrying of one turn."""

    def __init__(
        self,
        context: RuntimeContext,
        calls: ToolRunner,
        server: AppServer,
        turn: Turn,
        news: JournalWatcher,
        asking: ApprovalGate,
    ) -> None:
        self._context = context
        self._tool_runner = calls
        self._server = server
        self._turn = turn
        self._journal = news
        self._approvals = asking
        self._recorder = TurnRecorder(turn, NAME, context.tool_environment.redact, context.blobs.put)
        settings = context.config.codex
        self._watchdog = TurnWatchdog(anyio.current_time(), settings.seconds, settings.quiet)
        self._notifications = NotificationReader(turn, self._recorder, self._watchdog)
        self._server_requests = ServerRequests(turn, server, self._recorder, self._notifications, self._watchdog)
        self._leftovers = SandboxLeftovers(turn.session.workspace)
        self._thread_id = ""
        self._last_sent = 0
        """The newest input that was sent there."""
        self._input_arrived = anyio.Event()
        self._scope = anyio.CancelScope()
        self._failure: Unavailable | None = None
        self._is_suspended = False
        self._is_over = False

    async def run(self, tools: ToolProvider) -> None:
        terms = ThreadOptions(self._context.config, self._tool_runner.tools_of(self._turn), tools)
        opened = await open_thread(self._server, self._turn, terms)
        self._thread_id = opened.id
        self._recorder.model = opened.model
        with self._server.subscribe(opened.id) as line, self._receive_mcp_calls() as visitors:
            found = await find_turn(self._server, self._turn, opened)
            standing = await Recovery(self._turn, self._recorder, self._tool_runner, self._approvals).run(found)
            if standing.is_suspended:
                return
            if standing.status == "failed":
                raise turn_failed(standing.error)
            inputs = [(seq, words) for seq, words in self._turn.transcript().unseen() if seq > self._recorder.saw]
            if not inputs and standing.status == "completed":
                return
            await inject_history(self._server, self._turn, opened, await newest_input(self._server, self._turn, opened))
            self._server_requests.earlier_answers = standing.answers
            await self._start_turn(opened, self._interruption_note(opened, standing, inputs), inputs)
            await self._run(line, visitors)

    @contextmanager
    def _receive_mcp_calls(self) -> Generator[McpCalls]:
        """Calls of our tools over MCP belong to this turn from now on; they wait until it is heard."""
        guest = self._server.mcp_sessions.get(self._thread_id)
        visits, visitors = anyio.create_memory_object_stream[PendingCall](math.inf)
        with visits, visitors, guest.deliver_to(visits.send_nowait) if guest else nullcontext():
            yield visitors

    def _interruption_note(
        self, thread: OpenThread, recovered: RecoveredTurn, inputs: Sequence[tuple[int, UserMessage]]
    ) -> str:
        """What it is told before the person's words: that it was interrupted, if it was."""
        is_cut = recovered.status == "interrupted" or bool(recovered.notes) or not inputs
        notes = "".join(f"\n- {note}" for note in recovered.notes)
        return _RESUME_NOTE.format(notes=f"{notes}\n" if notes else "") if is_cut else ""

    async def _start_turn(self, thread: OpenThread, text: str, inputs: Sequence[tuple[int, UserMessage]]) -> None:
        saw = inputs[-1][0] if inputs else self._recorder.saw
        if thread.is_new:
            await self._turn.record(Bound(NAME, thread.id, saw=saw))
        params: dict[str, Any] = {"threadId": thread.id, "input": self._render_input(text, inputs)}
        if inputs:
            params["clientUserMessageId"] = client_id(saw)
        if model := await model_override(self._server, self._turn, self._context.config, thread):
            params["model"] = self._recorder.model = self._server.thread_models[thread.id] = model
        try:
            self._notifications.turn_id = parse_turn_id(await self._server.request("turn/start", params))
        except RpcError as error:
            raise request_failed(error, "the turn") from error
        except BaseException:
            # Whether it works on this is not known, and it cannot be told to stop.
            self._server.retire()
            raise
        self._watchdog.turn_started(anyio.current_time())
        self._last_sent = self._recorder.saw = saw
        try:
            await self._turn.record(Bound(NAME, thread.id, self._notifications.turn_id, saw))
        except BaseException:
            self._server.retire()
            raise

    def _render_input(self, text: str, inputs: Sequence[tuple[int, UserMessage]]) -> list[dict[str, Any]]:
        said = [{"type": "text", "text": text}] if text else []
        for _, words in inputs:
            said.append({"type": "text", "text": words.text or "(no words)"})
            for image in words.images:
                content = b64encode(self._context.blobs.get(image.blob)).decode()
                said.append({"type": "image", "url": f"data:{image.media};base64,{content}"})
        return said

    async def _run(self, line: ThreadMessages, visitors: McpCalls) -> None:
        """Hear it out. Whatever ends this early, it does not go on there unheard."""
        ended: CodexTurn | None = None
        try:
            try:
                ended = await self._consume(line, visitors)
            finally:
                if not self._is_over:
                    with anyio.CancelScope(shield=True):
                        await self._interrupt_and_wait(line)
        except (ProcessExited, Unavailable):
            await self._record_partial()
            raise
        if self._is_suspended:
            return
        if self._failure or ended is None:
            await self._record_partial()
            raise self._failure or codex_failed("Codex stopped")
        await self._finish(ended)

    async def _consume(self, line: ThreadMessages, visitors: McpCalls) -> CodexTurn | None:
        try:
            async with anyio.create_task_group() as group:
                self._server_requests.on_suspended = self._suspend
                self._notifications.on_unconfirmed = lambda item: _start_soon(
                    group, self._server_requests.assume_started, item
                )
                group.start_soon(self._journal.listen, self._on_input)
                group.start_soon(self._steer)
                group.start_soon(self._run_watchdog)
                group.start_soon(self._run_mcp_calls, visitors, group)
                ended = None
                with self._scope:
                    ended = await self._read_messages(line, group)
                group.cancel_scope.cancel()
                return ended
        except ExceptionGroup as several:
            raise several.exceptions[0] from several
        return None

    async def _read_messages(self, line: ThreadMessages, group: TaskGroup) -> CodexTurn:
        while True:
            match await line.next():
                case RpcRequest() as request:
                    self._server_requests.handle(request, self._tool_runner, self._approvals, group)
                case RpcNotification() as notification:
                    if ended := await self._notifications.handle(notification):
                        self._is_over = True
                        return ended

    async def _run_mcp_calls(self, visitors: McpCalls, group: TaskGroup) -> None:
        async for visit in visitors:
            self._server_requests.run_mcp_call(visit, self._tool_runner, self._approvals, group)

    async def _finish(self, ended: CodexTurn) -> None:
        match ended.status:
            case "completed":
                await self._recorder.close(CONTINUES_IN_BACKGROUND)
            case "failed":
                await self._record_partial()
                failed = turn_failed(ended.error or self._notifications.last_error)
                if is_login_error(str(failed)):
                    # One that is started after a login knows of it.
                    self._server.retire()
                raise failed
            case _:
                await self._record_partial()
                raise codex_failed("Codex ended the turn before it was done")

    async def _record_partial(self) -> None:
        """What was done so far stays done."""
        await self._notifications.record_partial_messages()
        await self._recorder.close()

    def _suspend(self) -> None:
        self._is_suspended = True
        self._scope.cancel()

    def _fail(self, error: Unavailable) -> None:
        self._failure = error
        self._scope.cancel()

    def _on_input(self) -> None:
        self._input_arrived.set()

    async def _steer(self) -> None:
        """Pass on what arrives meanwhile. What is not taken stays unseen, and begins a turn of its own there."""
        while True:
            inputs = [(seq, words) for seq, words in self._turn.transcript().unseen() if seq > self._last_sent]
            if inputs:
                newest = inputs[-1][0]
                params = {"threadId": self._thread_id, "expectedTurnId": self._notifications.turn_id}
                more = {"input": self._render_input("", inputs), "clientUserMessageId": client_id(newest)}
                try:
                    await self._server.request("turn/steer", {**params, **more})
                except (RpcError, RequestTimeout) as error:
                    log.info("an input was not taken during the turn: %s", error)
                    return
                self._last_sent = newest
                if not self._notifications.acknowledges_inputs:
                    self._recorder.saw = newest
            await self._input_arrived.wait()
            self._input_arrived = anyio.Event()

    async def _run_watchdog(self) -> None:
        """End a turn that takes too long. Silence is no verdict: whether it is alive is asked first."""
        while True:
            now = anyio.current_time()
            match self._watchdog.check(now):
                case "late":
                    seconds = self._context.config.codex.seconds
                    self._fail(
                        codex_failed(f"Codex worked on this for {seconds} s, the limit of one turn (codex.seconds)")
                    )
                    return
                case "quiet" if not await self._is_alive():
                    self._fail(
                        codex_failed("Codex said nothing more after a tool had ended, and did not work on it either")
                    )
                    return
                case "quiet":
                    self._watchdog.confirmed_alive(anyio.current_time())
                case "":
                    await anyio.sleep(self._watchdog.seconds_to_next_check(now))

    async def _is_alive(self) -> bool:
        try:
            return parse_is_active(
                await self._server.request("thread/read", {"threadId": self._thread_id}, _ALIVE_TIMEOUT)
            )
        except (RpcError, RequestTimeout) as error:
            log.warning("Codex does not say whether it works: %s", error)
            return False

    async def _interrupt_and_wait(self, line: ThreadMessages) -> None:
        """Stop it, and what it runs. A process that does not obey, or has had its time, is ended."""
        with anyio.move_on_after(INTERRUPT_TIMEOUT) as scope:
            try:
                await self._interrupt(line)
            except (RpcError, RequestTimeout) as error:
                log.warning("Codex did not stop when told to: %s", error)
                self._server.retire()
            except ProcessExited as gone:
                log.info("%s", gone)
        if scope.cancelled_caught:
            log.warning("Codex did not stop within %g s", INTERRUPT_TIMEOUT)
        if scope.cancelled_caught or self._failure:
            self._server.retire()
        await self._leftovers.clear()

    async def _interrupt(self, line: ThreadMessages) -> None:
        await self._server.request(
            "turn/interrupt", {"threadId": self._thread_id, "turnId": self._notifications.turn_id}, INTERRUPT_TIMEOUT
        )
        await self._server.request("thread/backgroundTerminals/clean", {"threadId": self._thread_id}, INTERRUPT_TIMEOUT)
        running = {id for id, item in self._notifications.open_items.items() if is_running(item)}
        is_over = False
        while not is_over or running:
            message = await line.next()
            if message.method == "turn/completed":
                is_over = True
            elif message.method == "item/completed":
                running.discard(parse_item(parse_notification(message.params).item).id)


def _start_soon(group: TaskGroup, act: Callable[[str], Coroutine[Any, Any, None]], item: str) -> None:
    group.start_soon(act, item)
