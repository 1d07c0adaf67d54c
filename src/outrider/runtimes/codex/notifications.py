"""What Codex did, in our words. Pure.

What Codex tells while it carries a turn: written down, shown, and counted.
"""

import logging
import shlex
from collections.abc import Callable, Mapping
from typing import Any, cast

import anyio
import msgspec
from msgspec import Raw

from outrider.core.events import Delta
from outrider.core.ports import Turn
from outrider.runtimes.codex.errors import codex_failed
from outrider.runtimes.codex.protocol import (
    CodexError,
    CodexTurn,
    FileUpdateChange,
    NotificationParams,
    RawItem,
    ThreadItem,
    get_field,
    parse_client_id,
    parse_item,
    parse_notification,
    parse_raw_item,
)
from outrider.runtimes.codex.tools import SERVER, parse_our_call
from outrider.runtimes.codex.watchdog import TurnWatchdog
from outrider.runtimes.external.recorder import CallOutcome, ExternalCall, TurnRecorder
from outrider.runtimes.jsonrpc.connection import RpcNotification
from outrider.system.failpoints import failpoint

EXITED_TEXT = "exited with code "
"""In what Codex tells its model of a command that does not go on."""
ABORTED = ("<turn_aborted>", "<turn_aborted/>")
"""In Codex's own words, the turn is over."""
_SHELLS = ("bash", "sh", "zsh", "dash")
_FINAL_STATUSES = {"completed", "failed", "declined"}
DECLINED = "not run: the person did not allow it"


def call_of_item(item: ThreadItem) -> ExternalCall | None:
    """What this item does; None for what does nothing by itself, or is not known here."""
    match item.type:
        case "commandExecution":
            return ExternalCall(item.id, "shell", {"command": plain_command(item.command or ""), "cwd": item.cwd or ""})
        case "fileChange":
            return ExternalCall(item.id, "patch", {"changes": [_change(change) for change in item.changes or ()]})
        case "mcpToolCall" if not is_our_tool(item):
            return ExternalCall(item.id, f"mcp_{item.server or ''}_{item.tool or ''}", _args(item.arguments))
        case "webSearch":
            return ExternalCall(item.id, "web_search", {"query": item.query or ""})
        case "imageView":
            return ExternalCall(item.id, "view_image", {"path": item.path or ""})
        case "imageGeneration":
            return ExternalCall(item.id, "generate_image", {"prompt": item.revised_prompt or item.prompt or ""})
        case "collabAgentToolCall":
            return ExternalCall(item.id, f"codex_{item.tool or 'agent'}", {"prompt": item.prompt or ""})
        case _:
            return None


def is_our_tool(item: ThreadItem) -> bool:
    """Whether it is a call of a tool of ours, which comes to us by itself and is written down there."""
    return item.type == "dynamicToolCall" or (item.type == "mcpToolCall" and item.server == SERVER)


def is_running(item: ThreadItem) -> bool:
    """Whether it runs already. Of other items, the question whether they may comes after they are told."""
    return item.type == "commandExecution" and item.process_id is not None


def outcome_of_item(item: ThreadItem) -> CallOutcome:
    """What came of an item that is completed."""
    failed = item.status in ("failed", "declined")
    if item.status == "declined":
        return CallOutcome(DECLINED, failed=True)
    match item.type:
        case "commandExecution":
            code = item.exit_code
            ended = "" if not code else f"\n[exit status {code}]" if code > 0 else "\n[it was ended before its time]"
            details = "" if code is None else f"exit {code}"
            return CallOutcome((item.aggregated_output or "") + ended, failed or bool(code), details)
        case "fileChange":
            count = len(item.changes or ())
            told = "; ".join(f"{_kind(change)} {change.path}" for change in item.changes or ())
            return CallOutcome(f"failed: {told}" if failed else told, failed, f"{count} file{'s' * (count != 1)}")
        case "mcpToolCall":
            return CallOutcome(_message(item.error) or _content(item.result), failed)
        case _:
            return CallOutcome(_message(item.error) or item.status or "done", failed)


def call_without_item(call: RawItem, answer: RawItem) -> tuple[ExternalCall, CallOutcome] | None:
    """A command or patch that Codex tells no item of: some that fail at once. None for what is told otherwise."""
    text = _content(answer.output)
    if call.name in ("exec_command", "shell", "shell_command", "local_shell"):
        args = _parse_args(call.arguments)
        command = args.get("cmd") or args.get("command") or call.arguments
        shown = shlex.join(map(str, cast("list[object]", command))) if isinstance(command, list) else str(command)
        deed = ExternalCall(call.call_id, "shell", {"command": shown, "cwd": str(args.get("workdir") or "")})
        return deed, CallOutcome(text, failed="exited with code 0" not in text)
    if call.name == "apply_patch":
        return ExternalCall(call.call_id, "patch", {"patch": call.input or call.arguments}), CallOutcome(
            text, failed=True
        )
    return None


def is_finished(item: ThreadItem) -> bool:
    """Whether a past item came to an end of its own."""
    return item.status is None or item.status in _FINAL_STATUSES


def plain_command(command: str) -> str:
    """What a shell is given to run, without the shell."""
    try:
        words = shlex.split(command)
    except ValueError:
        return command
    if len(words) == 3 and words[0].rpartition("/")[2] in _SHELLS and words[1] in ("-lc", "-c"):
        return words[2]
    return command


def is_aborted(text: str) -> bool:
    return any(mark in text for mark in ABORTED)


def render_changes(changes: list[FileUpdateChange]) -> str:
    """Changes as people read them before they allow them."""
    return "\n".join(f"{_kind(change)} {change.path}\n{change.diff}".rstrip() for change in changes)


def _change(change: FileUpdateChange) -> dict[str, object]:
    return {"path": change.path, "kind": _kind(change), "diff": change.diff}


def _kind(change: FileUpdateChange) -> str:
    kind = get_field(change.kind, "type") or change.kind
    return kind if isinstance(kind, str) else "change"


def _args(arguments: Any) -> Mapping[str, object]:
    if isinstance(arguments, dict):
        return cast("dict[str, object]", arguments)
    return {} if arguments is None else {"arguments": arguments}


def _parse_args(text: str) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _message(error: Any) -> str:
    words = get_field(error, "message") or error
    return words if isinstance(words, str) else ""


def _content(result: Any) -> str:
    """The texts of an MCP result or of a model's function output, or else its JSON."""
    if isinstance(result, str):
        return result
    parts = get_field(result, "content") or result
    if isinstance(parts, list):
        texts = [get_field(part, "text") for part in cast("list[object]", parts)]
        if found := [text for text in texts if isinstance(text, str)]:
            return "\n".join(found)
    return "" if result is None else msgspec.json.encode(result).decode()


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

    async def _dispatch(self, method: str, params: NotificationParams) -> None:
        now = anyio.current_time()
        match method:
            case "item/started":
                self._watchdog.message_received(now)
                await self._item_started(_parse_item(params.item))
            case "item/completed":
                await self._item_completed(_parse_item(params.item), now)
            case "item/agentMessage/delta":
                self._watchdog.message_received(now)
                self._message_delta(params)
            case "item/reasoning/summaryTextDelta" | "item/reasoning/textDelta":
                self._watchdog.message_received(now)
                self._turn.emit(Delta(params.delta, "reasoning"))
            case "thread/tokenUsage/updated":
                self._recorder.add_usage(params.token_usage.last.usage())
            case "rawResponseItem/completed":
                await self._raw_item_completed(params.item)
            case "error":
                self._watchdog.message_received(now)
                self._error_reported(params)
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

    def _message_delta(self, params: NotificationParams) -> None:
        said = self._partial_messages.setdefault(params.item_id, [])
        said.append(params.delta)
        self._turn.emit(Delta(params.delta))
        failpoint("mid_reply")
        if is_aborted("".join(said[-_ABORT_WINDOW:])):
            raise codex_failed("Codex aborted the turn")

    def _error_reported(self, params: NotificationParams) -> None:
        self.last_error = params.error
        if params.will_retry:
            self._partial_messages.clear()
            why = params.error.additional_details or params.error.message
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
