"""One run of a turn in a thread of Codex: opens the thread, recovers an interrupted turn, starts or continues it.

Whatever ends the run early, Codex does not continue to work on the turn: it is interrupted, and ended when it does not
stop in time.
"""

import logging
import math
from collections.abc import Generator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream

from outrider.core.errors import Unavailable
from outrider.core.events import Bound
from outrider.core.ports import Turn
from outrider.core.prompt import UserMessage
from outrider.core.types import Image, Usage
from outrider.runtimes.base import RuntimeContext
from outrider.runtimes.codex.app_server import AppServer, ThreadMessages
from outrider.runtimes.codex.approvals import ServerRequests
from outrider.runtimes.codex.errors import (
    CodexFailed,
    codex_failed,
    deadline_reached,
    is_login_error,
    request_failed,
    turn_failed,
)
from outrider.runtimes.codex.launch import SandboxLeftovers
from outrider.runtimes.codex.notifications import ItemTracker, NotificationReader, is_running
from outrider.runtimes.codex.protocol import (
    CodexTurn,
    client_id,
    parse_is_active,
    parse_item,
    parse_notification,
    parse_turn_id,
)
from outrider.runtimes.codex.recovery import RecoveredTurn, Recovery, find_turn, newest_input
from outrider.runtimes.codex.threads import (
    NAME,
    HistoryParts,
    OpenThread,
    ThreadOptions,
    inject_history,
    model_override,
    open_thread,
)
from outrider.runtimes.codex.tools import OwnToolRunner, TaskOutputs, ToolProvider
from outrider.runtimes.codex.watchdog import ABORT_GRACE, TurnWatchdog
from outrider.runtimes.external.approvals import ApprovalGate, ApprovalSuspended, JournalWatcher
from outrider.runtimes.external.images import data_url
from outrider.runtimes.external.recorder import CONTINUES_IN_BACKGROUND, TurnRecorder
from outrider.runtimes.jsonrpc.connection import RpcNotification, RpcRequest
from outrider.runtimes.jsonrpc.errors import ProcessExited, RequestTimeout, RpcError
from outrider.runtimes.mcp_server import PendingCall
from outrider.runtimes.tool_runner import ToolRunner

INTERRUPT_TIMEOUT = 5.0
"""Seconds in which Codex must stop a turn that is interrupted, before its process is ended."""
_ALIVE_TIMEOUT = 5.0
_RESUME_NOTE = (
    "[Outrider: the work on this was interrupted.{notes} Continue with what you were asked to do; do not repeat what "
    "is done already.]"
)
McpCalls = MemoryObjectReceiveStream[PendingCall]
"""The calls of our tools that came over MCP."""
Inputs = Sequence[tuple[int, UserMessage]]
log = logging.getLogger("outrider.codex")


class CodexTurnRun:
    def __init__(
        self,
        context: RuntimeContext,
        tool_runner: ToolRunner,
        server: AppServer,
        turn: Turn,
        journal: JournalWatcher,
        approvals: ApprovalGate,
        *,
        interrupt_timeout: float = INTERRUPT_TIMEOUT,
        abort_grace: float = ABORT_GRACE,
    ) -> None:
        self._context = context
        self._tool_runner = tool_runner
        self._server = server
        self._turn = turn
        self._journal = journal
        self._approvals = approvals
        self._interrupt_timeout = interrupt_timeout
        self._recorder = TurnRecorder(turn, NAME, context.tool_environment.redact, context.blobs.put)
        settings = context.config.codex
        self._watchdog = TurnWatchdog(anyio.current_time(), settings.seconds, settings.quiet, abort_grace)
        self._items = ItemTracker()
        self._notifications = NotificationReader(turn, self._recorder, self._watchdog, self._items)
        self._task_outputs = TaskOutputs(context.config.home)
        self._leftovers = SandboxLeftovers(turn.session.workspace)
        self._thread_id = ""
        self._last_sent = 0
        """The newest input that was sent to Codex."""
        self._input_arrived = anyio.Event()
        self._is_over = False

    async def run(self, tools: ToolProvider) -> None:
        options = ThreadOptions(self._context.config, self._tool_runner.tools_of(self._turn), tools)
        thread = await open_thread(self._server, self._turn, options)
        self._thread_id = thread.id
        self._recorder.set_model(thread.model)
        with (
            self._server.subscribe(thread.id) as messages,
            self._count_tokens(thread),
            self._receive_mcp_calls() as mcp_calls,
        ):
            codex_turn = await find_turn(self._server, self._turn, thread)
            recovery = Recovery(self._turn, self._recorder, self._tool_runner, self._approvals)
            recovered = await recovery.run(codex_turn)
            if recovered.is_suspended:
                return
            if recovered.status == "failed":
                raise turn_failed(recovered.error)
            inputs = [(seq, message) for seq, message in self._turn.transcript().unseen() if seq > self._recorder.saw]
            if not inputs and recovered.status == "completed":
                return
            newest = await newest_input(self._server, self._turn, thread)
            history_parts = HistoryParts(self._load_image, self._task_outputs)
            await inject_history(self._server, self._turn, thread, newest, history_parts)
            await self._start_turn(thread, _interruption_note(recovered, inputs), inputs)
            await self._run(messages, mcp_calls)

    @contextmanager
    def _count_tokens(self, thread: OpenThread) -> Generator[None]:
        """Count from what the thread has used before, and remember what it has used for its next turn."""
        self._notifications.set_thread_usage(Usage() if thread.is_new else self._server.thread_usage(thread.id))
        try:
            yield
        finally:
            if usage := self._notifications.thread_usage:
                self._server.set_thread_usage(thread.id, usage)

    @contextmanager
    def _receive_mcp_calls(self) -> Generator[McpCalls]:
        """The calls of our tools over MCP belong to this turn from now on; they wait until it has started."""
        thread = self._server.thread(self._thread_id)
        session = thread.mcp_session if thread else None
        sender, receiver = anyio.create_memory_object_stream[PendingCall](math.inf)
        with sender, receiver, session.deliver_to(sender.send_nowait) if session else nullcontext():
            yield receiver

    async def _start_turn(self, thread: OpenThread, note: str, inputs: Inputs) -> None:
        saw = inputs[-1][0] if inputs else self._recorder.saw
        if thread.is_new:
            await self._turn.record(Bound(NAME, thread.id, saw=saw))
        params: dict[str, Any] = {"threadId": thread.id, "input": self._render_input(note, inputs)}
        if inputs:
            params["clientUserMessageId"] = client_id(saw)
        if model := await model_override(self._server, self._turn, self._context.config, thread):
            params["model"] = model
            self._recorder.set_model(model)
            self._server.set_thread_model(thread.id, model)
        try:
            turn_id = parse_turn_id(await self._server.request("turn/start", params))
            if not turn_id:
                raise codex_failed("Codex started the turn, and Outrider could not read its id")
        except RpcError as error:
            raise request_failed(error, "the turn") from error
        except BaseException:
            # Codex may be working on this, and without the turn's id it cannot be interrupted.
            self._server.end()
            raise
        self._items.turn_started(turn_id)
        self._watchdog.turn_started(anyio.current_time())
        self._last_sent = saw
        self._recorder.input_seen(saw)
        try:
            await self._turn.record(Bound(NAME, thread.id, turn_id, saw))
        except BaseException:
            self._server.end()
            raise

    def _render_input(self, note: str, inputs: Inputs) -> list[dict[str, Any]]:
        rename = self._task_outputs.rename
        blocks = [{"type": "text", "text": rename(note)}] if note else []
        for _, message in inputs:
            text = message.text if message.source == "person" else rename(message.text)
            blocks.append({"type": "text", "text": text or "(no text)"})
            for image in message.images:
                blocks.append({"type": "image", "url": data_url(image.media, self._load_image(image))})
        return blocks

    def _load_image(self, image: Image) -> bytes:
        return self._context.blobs.get(image.blob)

    async def _run(self, messages: ThreadMessages, mcp_calls: McpCalls) -> None:
        """Read the turn to its end, or interrupt it when anything ends this early."""
        try:
            try:
                ended = await self._consume(messages, mcp_calls)
            except BaseException as error:
                if not self._is_over:
                    with anyio.CancelScope(shield=True):
                        await self._interrupt_and_wait(messages, is_late=isinstance(error, _TurnTimedOut))
                raise
        except ApprovalSuspended:
            return
        except Unavailable as error:
            if not (isinstance(error, ProcessExited) and self._server.interrupts_others):
                await self._record_partial()
            raise
        await self._finish(ended)

    async def _consume(self, messages: ThreadMessages, mcp_calls: McpCalls) -> CodexTurn:
        ended: CodexTurn | None = None
        try:
            async with anyio.create_task_group() as group:
                requests = ServerRequests(
                    self._turn,
                    self._server,
                    self._recorder,
                    self._items,
                    self._watchdog,
                    self._approvals,
                    OwnToolRunner(self._tool_runner, self._task_outputs, self._load_image),
                    group,
                )
                group.start_soon(self._journal.listen, lambda: self._input_arrived.set())
                group.start_soon(self._notifications.confirm_starts)
                group.start_soon(self._steer)
                group.start_soon(self._run_watchdog)
                group.start_soon(_run_mcp_calls, mcp_calls, requests)
                ended = await self._read_messages(messages, requests)
                group.cancel_scope.cancel()
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from errors
        if ended is None:
            raise codex_failed("Codex stopped")
        return ended

    async def _read_messages(self, messages: ThreadMessages, requests: ServerRequests) -> CodexTurn:
        while True:
            match await messages.next():
                case RpcRequest() as request:
                    requests.handle(request)
                case RpcNotification() as notification:
                    if ended := await self._notifications.handle(notification):
                        self._is_over = True
                        return ended

    async def _finish(self, ended: CodexTurn) -> None:
        match ended.status:
            case "completed":
                await self._recorder.close(CONTINUES_IN_BACKGROUND)
            case "failed":
                await self._record_partial()
                failed = turn_failed(ended.error or self._notifications.last_error)
                if is_login_error(str(failed)):
                    # Only a process that is started after the login has it.
                    self._server.retire()
                raise failed
            case "interrupted":
                await self._record_partial()
                raise codex_failed("Codex ended the turn before it was done")
            case status:
                await self._record_partial()
                if ended.error:
                    raise turn_failed(ended.error)
                how = f"the status `{status[:100]}`, which Outrider does not know" if status else "no readable status"
                raise codex_failed(f"Codex ended the turn with {how}; what it did until then is kept")

    async def _record_partial(self) -> None:
        await self._notifications.record_partial_messages()
        await self._recorder.close()

    async def _steer(self) -> None:
        """Send inputs that arrive during the turn. One that Codex rejects stays unseen and starts its next turn."""
        while True:
            inputs = [(seq, message) for seq, message in self._turn.transcript().unseen() if seq > self._last_sent]
            if inputs:
                newest = inputs[-1][0]
                params = {
                    "threadId": self._thread_id,
                    "expectedTurnId": self._items.turn_id,
                    "input": self._render_input("", inputs),
                    "clientUserMessageId": client_id(newest),
                }
                try:
                    await self._server.request("turn/steer", params)
                except (RpcError, RequestTimeout) as error:
                    log.info("Codex did not accept an input during the turn: %s", error)
                    return
                self._last_sent = newest
                if not self._notifications.acknowledges_inputs:
                    self._recorder.input_seen(newest)
            await self._input_arrived.wait()
            self._input_arrived = anyio.Event()

    async def _run_watchdog(self) -> None:
        """Raise _TurnTimedOut when the turn takes too long, or when Codex is silent and does not work on it."""
        seconds = self._context.config.codex.seconds
        while True:
            now = anyio.current_time()
            match self._watchdog.check(now):
                case "late":
                    silent = self._watchdog.model_silence(now)
                    text = f"the turn reached its time limit of {seconds} s (codex.seconds)"
                    raise _TurnTimedOut(deadline_reached(text, self._notifications.open_error, silent))
                case "aborted":
                    raise codex_failed("Codex aborted the turn")
                case "quiet" if not await self._is_alive():
                    text = "Codex was silent after a tool call and is no longer working on the turn"
                    raise _TurnTimedOut(deadline_reached(text, self._notifications.open_error))
                case "idle" if not await self._is_alive():
                    text = "Codex stopped working on the turn, and did not say in a readable way how it ended"
                    raise _TurnTimedOut(deadline_reached(text, self._notifications.open_error))
                case "quiet" | "idle":
                    self._watchdog.confirmed_alive(anyio.current_time())
                case "":
                    await anyio.sleep(self._watchdog.seconds_to_next_check(now))

    async def _is_alive(self) -> bool:
        try:
            params = {"threadId": self._thread_id}
            return parse_is_active(await self._server.request("thread/read", params, _ALIVE_TIMEOUT))
        except (RpcError, RequestTimeout) as error:
            log.warning("Codex does not say whether it works: %s", error)
            return False

    async def _interrupt_and_wait(self, messages: ThreadMessages, *, is_late: bool) -> None:
        """Stop the turn and the commands it runs.

        A process that does not stop it in time is ended, with the other turns in it; they continue in another one.
        After a turn that `is_late`, its process takes no more turns.
        """
        with anyio.move_on_after(self._interrupt_timeout) as scope:
            try:
                await self._interrupt(messages)
            except (RpcError, RequestTimeout) as error:
                log.warning("Codex did not stop: %s", error)
                self._server.end()
            except ProcessExited as exited:
                log.info("%s", exited)
        if scope.cancelled_caught:
            log.warning("Codex did not stop within %g s", self._interrupt_timeout)
            self._server.end()
        if is_late:
            self._server.retire()
        await self._leftovers.clear()

    async def _interrupt(self, messages: ThreadMessages) -> None:
        thread, timeout = self._thread_id, self._interrupt_timeout
        params = {"threadId": thread, "turnId": self._items.turn_id}
        await self._server.request("turn/interrupt", params, timeout)
        await self._server.request("thread/backgroundTerminals/clean", {"threadId": thread}, timeout)
        running = {id for id, item in self._items.open_items.items() if is_running(item)}
        is_over = False
        while not is_over or running:
            message = await messages.next()
            if message.method == "turn/completed":
                is_over = True
            elif message.method == "thread/tokenUsage/updated" and isinstance(message, RpcNotification):
                await self._notifications.handle(message)
            elif message.method == "item/completed":
                running.discard(parse_item(parse_notification(message.params).item).id)


class _TurnTimedOut(CodexFailed):
    """Codex worked for too long, or stopped working without ending the turn."""


async def _run_mcp_calls(calls: McpCalls, requests: ServerRequests) -> None:
    async for call in calls:
        requests.run_mcp_call(call)


def _interruption_note(recovered: RecoveredTurn, inputs: Inputs) -> str:
    """The note before the person's message that says that the work was interrupted; empty when it was not."""
    is_interrupted = recovered.status == "interrupted" or bool(recovered.notes) or not inputs
    notes = "".join(f"\n- {note}" for note in recovered.notes)
    return _RESUME_NOTE.format(notes=f"{notes}\n" if notes else "") if is_interrupted else ""
