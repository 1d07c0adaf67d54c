"""What Codex tells while it carries a turn: written down, shown, and counted."""

import logging
from collections.abc import Callable

import anyio
import msgspec
from msgspec import Raw

from outrider.config.fail import failpoint
from outrider.core.events import Delta
from outrider.core.ports import Turn
from outrider.runtimes.codex.faults import told
from outrider.runtimes.codex.items import HAS_ENDED, is_aborted, is_lent, is_sure, missing, outcome, parse_deed
from outrider.runtimes.codex.recover import parse_client_id
from outrider.runtimes.codex.tools import parse_call
from outrider.runtimes.codex.watch import Watch
from outrider.runtimes.codex.wire import CodexTurn, Fault, Item, RawItem, Told, parse_item, parse_raw_item, parse_told
from outrider.runtimes.jsonrpc import Notification
from outrider.runtimes.outside.ledger import Ledger, Outcome

_TAIL = 40
log = logging.getLogger("outrider.codex")


class Hearing:
    """One turn's notifications, in their order."""

    def __init__(self, turn: Turn, ledger: Ledger, watch: Watch) -> None:
        self._turn = turn
        self._ledger = ledger
        self._watch = watch
        self.id = ""
        """The turn's name there."""
        self.writing = anyio.Lock()
        """For whoever writes to the ledger."""
        self.items: dict[str, Item] = {}
        """What has begun, and not ended."""
        self.fault: Fault | None = None
        """The last error that was told."""
        self.has_receipts = False
        """Whether this Codex says which of our inputs it has taken in."""
        self.unsure: Callable[[str], None] = lambda item: None
        """Told of what began, though it may be asked about first."""
        self._saying: dict[str, list[str]] = {}
        self._raw: dict[str, RawItem] = {}

    async def take(self, message: Notification) -> CodexTurn | None:
        """The turn, once it is over. Raises CodexFailed when it says in its words that it is."""
        try:
            heard = parse_told(message.params)
        except msgspec.DecodeError as error:
            log.warning("%s was not understood: %s", message.method, error)
            return None
        if message.method == "turn/completed":
            return heard.turn if heard.turn.id == self.id else None
        if heard.turn_id and heard.turn_id != self.id:
            # Of an earlier turn, say a command that went on in the background.
            return None
        await self._take(message.method, heard)
        return None

    async def _take(self, method: str, heard: Told) -> None:
        now = anyio.current_time()
        match method:
            case "item/started":
                self._watch.heard(now)
                await self._began(_item(heard.item))
            case "item/completed":
                await self._ended(_item(heard.item), now)
            case "item/agentMessage/delta":
                self._watch.heard(now)
                self._says(heard)
            case "item/reasoning/summaryTextDelta" | "item/reasoning/textDelta":
                self._watch.heard(now)
                self._turn.emit(Delta(heard.delta, "reasoning"))
            case "thread/tokenUsage/updated":
                self._ledger.used(heard.token_usage.last.usage())
            case "rawResponseItem/completed":
                await self._raw_item(heard.item)
            case "error":
                self._watch.heard(now)
                self._failing(heard)
            case _:
                pass

    async def _began(self, item: Item) -> None:
        deed = parse_deed(item)
        async with self.writing:
            if deed is None:
                if item.type in ("agentMessage", "reasoning"):
                    # What comes now belongs to the next reply.
                    await self._ledger.flush()
                return
            self.items[item.id] = item
            self._watch.tool_began(item.id)
            self._turn.emit(Delta(deed.tool, "call"))
            await self._ledger.began(deed, is_sure=is_sure(item))
        if not is_sure(item):
            self.unsure(item.id)

    async def _ended(self, item: Item, now: float) -> None:
        async with self.writing:
            self.items.pop(item.id, None)
            match item.type:
                case "userMessage":
                    self._watch.heard(now)
                    if seq := parse_client_id(item.client_id):
                        self.has_receipts = True
                        await self._ledger.flush()
                        self._ledger.saw = max(self._ledger.saw, seq)
                case "agentMessage":
                    self._watch.heard(now)
                    self._saying.pop(item.id, None)
                    await self._ledger.said(item.id, item.text or "")
                    if is_aborted(item.text or ""):
                        raise told("Codex aborted the turn")
                case _:
                    if deed := parse_deed(item):
                        self._watch.tool_ended(item.id, now)
                        await self._ledger.ended(deed, outcome(item))
                    elif is_lent(item):
                        self._watch.tool_ended(item.id, now)
                        await self._never_came(item)
                    else:
                        self._watch.heard(now)

    async def _never_came(self, item: Item) -> None:
        """A call that did not come to us: Codex could not bring it, or meant another server of our name."""
        if item.type == "mcpToolCall" and not self._ledger.is_known(item.id):
            await self._ledger.ended(parse_call(item.id, item.tool or "", item.arguments), outcome(item))

    def _says(self, heard: Told) -> None:
        said = self._saying.setdefault(heard.item_id, [])
        said.append(heard.delta)
        self._turn.emit(Delta(heard.delta))
        failpoint("J5")
        if is_aborted("".join(said[-_TAIL:])):
            raise told("Codex aborted the turn")

    def _failing(self, heard: Told) -> None:
        self.fault = heard.error
        if heard.will_retry:
            self._saying.clear()
            why = heard.error.additional_details or heard.error.message
            self._turn.emit(Delta(f"Codex asks its model again: {why or 'it was cut off'}", "reset"))

    async def _raw_item(self, raw: Raw) -> None:
        """Find what Codex tells no item of: a command that fails at once, a patch that does not fit."""
        item = parse_raw_item(raw)
        if item.type in ("function_call", "custom_tool_call"):
            self._raw[item.call_id] = item
        elif item.type in ("function_call_output", "custom_tool_call_output"):
            call = self._raw.pop(item.call_id, None)
            found = missing(call, item) if call else None
            if found and self._is_untold(item.call_id, found[1]):
                async with self.writing:
                    self.items.pop(item.call_id, None)
                    self._watch.tool_ended(item.call_id, anyio.current_time())
                    await self._ledger.ended(*found)

    def _is_untold(self, item: str, came: Outcome) -> bool:
        """Whether no item tells of this, or one that began and never ends: its end is told before its answer is."""
        return HAS_ENDED in came.text if item in self.items else not self._ledger.is_known(item)

    def called(self, item: str) -> RawItem | None:
        """How the model called this, as far as it was told."""
        return self._raw.get(item)

    async def keep_partial(self) -> None:
        """What was being said when it was cut off is kept."""
        for item, said in self._saying.items():
            await self._ledger.said(item, "".join(said))
        self._saying.clear()


def _item(raw: Raw) -> Item:
    try:
        return parse_item(raw)
    except msgspec.DecodeError as error:
        log.warning("an item was not understood: %s", error)
        return Item()
