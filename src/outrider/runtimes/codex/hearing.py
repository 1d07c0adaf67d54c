"""What Codex tells while it carries a turn: written down, shown, and counted."""

import logging
from collections.abc import Callable

import anyio
import msgspec
from msgspec import Raw

from outrider.config.fail import failpoint
from outrider.core.events import Delta
from outrider.core.ports import Turn
from outrider.runtimes.codex.faults import codex_failed
from outrider.runtimes.codex.items import (
    EXITED_TEXT,
    call_of_item,
    call_without_item,
    is_aborted,
    is_our_tool,
    is_running,
    outcome_of_item,
)
from outrider.runtimes.codex.recover import parse_client_id
from outrider.runtimes.codex.tools import parse_our_call
from outrider.runtimes.codex.watch import TurnWatchdog
from outrider.runtimes.codex.wire import (
    CodexError,
    CodexTurn,
    NotificationParams,
    RawItem,
    ThreadItem,
    parse_item,
    parse_notification,
    parse_raw_item,
)
from outrider.runtimes.jsonrpc import RpcNotification
from outrider.runtimes.outside.ledger import CallOutcome, TurnRecorder

_ABORT_WINDOW = 40
log = logging.getLogger("outrider.codex")


class NotificationReader:
    """One turn's notifications, in their order."""

    def __init__(self, turn: Turn, ledger: TurnRecorder, watch: TurnWatchdog) -> None:
        self._turn = turn
        self._recorder = ledger
        self._watchdog = watch
        self.turn_id = ""
        """The turn's name there."""
        self.recorder_lock = anyio.Lock()
        """For whoever writes to the ledger."""
        self.open_items: dict[str, ThreadItem] = {}
        """What has begun, and not ended."""
        self.last_error: CodexError | None = None
        """The last error that was told."""
        self.acknowledges_inputs = False
        """Whether this Codex says which of our inputs it has taken in."""
        self.on_unconfirmed: Callable[[str], None] = lambda item: None
        """Told of what began, though it may be asked about first."""
        self._partial_messages: dict[str, list[str]] = {}
        self._raw_calls: dict[str, RawItem] = {}

    async def handle(self, message: RpcNotification) -> CodexTurn | None:
        """The turn, once it is over. Raises CodexFailed when it says in its words that it is."""
        try:
            heard = parse_notification(message.params)
        except msgspec.DecodeError as error:
            log.warning("%s was not understood: %s", message.method, error)
            return None
        if message.method == "turn/completed":
            return heard.turn if heard.turn.id == self.turn_id else None
        if heard.turn_id and heard.turn_id != self.turn_id:
            # Of an earlier turn, say a command that went on in the background.
            return None
        await self._dispatch(message.method, heard)
        return None

    async def _dispatch(self, method: str, heard: NotificationParams) -> None:
        now = anyio.current_time()
        match method:
            case "item/started":
                self._watchdog.message_received(now)
                await self._item_started(_parse_item(heard.item))
            case "item/completed":
                await self._item_completed(_parse_item(heard.item), now)
            case "item/agentMessage/delta":
                self._watchdog.message_received(now)
                self._message_delta(heard)
            case "item/reasoning/summaryTextDelta" | "item/reasoning/textDelta":
                self._watchdog.message_received(now)
                self._turn.emit(Delta(heard.delta, "reasoning"))
            case "thread/tokenUsage/updated":
                self._recorder.add_usage(heard.token_usage.last.usage())
            case "rawResponseItem/completed":
                await self._raw_item_completed(heard.item)
            case "error":
                self._watchdog.message_received(now)
                self._error_reported(heard)
            case _:
                pass

    async def _item_started(self, item: ThreadItem) -> None:
        deed = call_of_item(item)
        async with self.recorder_lock:
            if deed is None:
                if item.type in ("agentMessage", "reasoning"):
                    # What comes now belongs to the next reply.
                    await self._recorder.flush()
                return
            self.open_items[item.id] = item
            self._watchdog.tool_started(item.id)
            self._turn.emit(Delta(deed.tool, "call"))
            await self._recorder.call_announced(deed, is_sure=is_running(item))
        if not is_running(item):
            self.on_unconfirmed(item.id)

    async def _item_completed(self, item: ThreadItem, now: float) -> None:
        async with self.recorder_lock:
            self.open_items.pop(item.id, None)
            match item.type:
                case "userMessage":
                    self._watchdog.message_received(now)
                    if seq := parse_client_id(item.client_id):
                        self.acknowledges_inputs = True
                        await self._recorder.flush()
                        self._recorder.saw = max(self._recorder.saw, seq)
                case "agentMessage":
                    self._watchdog.message_received(now)
                    self._partial_messages.pop(item.id, None)
                    await self._recorder.message_finished(item.id, item.text or "")
                    if is_aborted(item.text or ""):
                        raise codex_failed("Codex aborted the turn")
                case _:
                    if deed := call_of_item(item):
                        self._watchdog.tool_ended(item.id, now)
                        await self._recorder.call_finished(deed, outcome_of_item(item))
                    elif is_our_tool(item):
                        self._watchdog.tool_ended(item.id, now)
                        await self._record_undelivered_call(item)
                    else:
                        self._watchdog.message_received(now)

    async def _record_undelivered_call(self, item: ThreadItem) -> None:
        """A call that did not come to us: Codex could not bring it, or meant another server of our name."""
        if item.type == "mcpToolCall" and not self._recorder.has_seen(item.id):
            await self._recorder.call_finished(
                parse_our_call(item.id, item.tool or "", item.arguments), outcome_of_item(item)
            )

    def _message_delta(self, heard: NotificationParams) -> None:
        said = self._partial_messages.setdefault(heard.item_id, [])
        said.append(heard.delta)
        self._turn.emit(Delta(heard.delta))
        failpoint("J5")
        if is_aborted("".join(said[-_ABORT_WINDOW:])):
            raise codex_failed("Codex aborted the turn")

    def _error_reported(self, heard: NotificationParams) -> None:
        self.last_error = heard.error
        if heard.will_retry:
            self._partial_messages.clear()
            why = heard.error.additional_details or heard.error.message
            self._turn.emit(Delta(f"Codex asks its model again: {why or 'it was cut off'}", "reset"))

    async def _raw_item_completed(self, raw: Raw) -> None:
        """Find what Codex tells no item of: a command that fails at once, a patch that does not fit."""
        item = parse_raw_item(raw)
        if item.type in ("function_call", "custom_tool_call"):
            self._raw_calls[item.call_id] = item
        elif item.type in ("function_call_output", "custom_tool_call_output"):
            call = self._raw_calls.pop(item.call_id, None)
            found = call_without_item(call, item) if call else None
            if found and self._is_unreported(item.call_id, found[1]):
                async with self.recorder_lock:
                    self.open_items.pop(item.call_id, None)
                    self._watchdog.tool_ended(item.call_id, anyio.current_time())
                    await self._recorder.call_finished(*found)

    def _is_unreported(self, item: str, came: CallOutcome) -> bool:
        """Whether no item tells of this, or one that began and never ends: its end is told before its answer is."""
        return EXITED_TEXT in came.text if item in self.open_items else not self._recorder.has_seen(item)

    def raw_call(self, item: str) -> RawItem | None:
        """How the model called this, as far as it was told."""
        return self._raw_calls.get(item)

    async def record_partial_messages(self) -> None:
        """What was being said when it was cut off is kept."""
        for item, said in self._partial_messages.items():
            await self._recorder.message_finished(item, "".join(said))
        self._partial_messages.clear()


def _parse_item(raw: Raw) -> ThreadItem:
    try:
        return parse_item(raw)
    except msgspec.DecodeError as error:
        log.warning("an item was not understood: %s", error)
        return ThreadItem()
