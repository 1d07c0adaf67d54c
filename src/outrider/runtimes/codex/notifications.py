"""Notifications of a running Codex turn: parsed into calls and outcomes, recorded, shown and counted."""

import logging
import shlex
from collections.abc import Mapping
from typing import Any, cast

import anyio
import msgspec
from msgspec import Raw, Struct, field
from msgspec.structs import replace

from outrider.core.events import Delta
from outrider.core.ports import Turn
from outrider.core.types import Usage
from outrider.runtimes.codex.errors import codex_failed, render_retry
from outrider.runtimes.codex.protocol import (
    CodexError,
    CodexTurn,
    FileUpdateChange,
    NotificationParams,
    RawItem,
    ThreadItem,
    ThreadTokenUsage,
    get_field,
    is_server_request,
    parse_arguments,
    parse_client_id,
    parse_item,
    parse_notification,
    parse_raw_item,
    thread_status,
)
from outrider.runtimes.codex.tools import SERVER, parse_our_call
from outrider.runtimes.codex.watchdog import TurnWatchdog
from outrider.runtimes.external.assumed_starts import AssumedStarts
from outrider.runtimes.external.images import ImageCollector
from outrider.runtimes.external.recorder import CallOutcome, ExternalCall, TurnRecorder
from outrider.runtimes.jsonrpc.connection import RpcNotification
from outrider.runtimes.jsonrpc.decoding import UnreadReporter
from outrider.system.failpoints import failpoint

EXITED_TEXT = "exited with code "
"""In the output of a command that has ended, as the model gets it."""
ABORTED = ("<turn_aborted>", "<turn_aborted/>")
"""In the text of the model when the turn is aborted, unless something follows."""
_ABORT_WINDOW = 40
_COMPACTION = "contextCompaction"
_SHELLS = ("bash", "sh", "zsh", "dash")
_SHELL_FOLDERS = ("", "/bin", "/usr/bin", "/usr/local/bin", "/opt/homebrew/bin", "/run/current-system/sw/bin")
"""Where a program of that name is the shell. Elsewhere it could be anything, so a question shows it."""
_KNOWN_STATUSES = {"inProgress", "completed", "failed", "declined"}
_OF_START = ("type", "id", "command", "cwd", "changes", "server", "tool", "arguments", "query", "path", "prompt")
"""Fields of an item that say what it is; they are the same when it completes."""
_OUTCOME_FIELDS = {"status", "aggregatedOutput", "exitCode", "changes", "result", "error", "command", "query", "path"}
"""Fields of an item whose loss is said in its outcome."""
SILENT_TYPES = {
    *("userMessage", "hookPrompt", "agentMessage", "functionCallOutput", "plan", "reasoning", "mcpToolCall"),
    *("dynamicToolCall", "subAgentActivity", "sleep", "enteredReviewMode", "exitedReviewMode", "contextCompaction"),
}
"""Types of items that are no calls of Codex's own tools."""
UNREAD_MESSAGE = "[Codex sent a message that Outrider could not read]"
USED_NOTIFICATIONS = {
    *("turn/completed", "item/started", "item/completed", "item/agentMessage/delta", "error"),
    *("item/reasoning/summaryTextDelta", "item/reasoning/textDelta", "thread/tokenUsage/updated"),
}
"""Notifications that are reported to the person when they cannot be read."""
_REPORTED_AT_END = frozenset({"webSearch"})
"""Items that change nothing and whose arguments are known only at their end, when they are recorded."""
_DECLINED = "not run: it was not allowed"
log = logging.getLogger("outrider.codex")


def call_of_item(item: ThreadItem) -> ExternalCall | None:
    """The call that this item reports; None for other items and for unknown ones."""
    match item.type:
        case "commandExecution":
            return ExternalCall(item.id, "shell", {"command": plain_command(item.command or ""), "cwd": item.cwd or ""})
        case "fileChange":
            changes = [{"path": each.path, "kind": _kind(each), "diff": each.diff} for each in item.changes or ()]
            return ExternalCall(item.id, "patch", {"changes": changes})
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
    """Whether it is a call of one of our tools, which reaches us as a request and is recorded there."""
    return item.type == "dynamicToolCall" or (item.type == "mcpToolCall" and item.server == SERVER)


def is_running(item: ThreadItem) -> bool:
    """Whether it is running already. For other items, the approval is requested after they are reported."""
    return item.type == "commandExecution" and item.process_id is not None


def outcome_of_item(item: ThreadItem) -> CallOutcome:
    """The outcome of a call that has ended; with what of it could not be read, and with a status that is not known."""
    outcome = _read_outcome(item)
    missing = [name for name in item.unread if name.partition("[")[0].partition(".")[0] in _OUTCOME_FIELDS]
    notes = [f"[Outrider could not read: {', '.join(missing)}]"] if missing else []
    if item.status and item.status not in _KNOWN_STATUSES:
        notes.append(f"[Codex reports the status `{item.status[:100]}`, which Outrider does not know]")
    return replace(outcome, text="\n".join([*([outcome.text] if outcome.text else []), *notes])) if notes else outcome


def _read_outcome(item: ThreadItem) -> CallOutcome:
    # A status of another version is no success, unless the exit code says so.
    is_unknown = bool(item.status) and item.status not in _KNOWN_STATUSES
    failed = item.status in ("failed", "declined") or (is_unknown and item.exit_code != 0)
    if item.status == "declined":
        return CallOutcome(_DECLINED, failed=True)
    match item.type:
        case "commandExecution":
            code = item.exit_code
            ended = "" if not code else f"\n[exit status {code}]" if code > 0 else "\n[it was terminated]"
            details = "" if code is None else f"exit {code}"
            return CallOutcome((item.aggregated_output or "") + ended, failed or bool(code), details)
        case "fileChange":
            count = len(item.changes or ())
            text = "; ".join(f"{_kind(change)} {change.path}" for change in item.changes or ())
            return CallOutcome(f"failed: {text}" if failed else text, failed, f"{count} file{'s' * (count != 1)}")
        case "mcpToolCall":
            images = ImageCollector()
            text = _message(item.error) or _content(item.result, images)
            return CallOutcome(text, failed, images=tuple(images.images))
        case "imageGeneration" if isinstance(item.result, str) and item.result:
            images = ImageCollector()
            text = images.add(item.result)
            return CallOutcome(text, failed, images=tuple(images.images))
        case "imageView" if not failed:
            return CallOutcome(f"[Codex looked at the image {item.path or ''}; only its model saw it]")
        case _:
            return CallOutcome(_message(item.error) or item.status or "done", failed)


def complete_item(item: ThreadItem, started: ThreadItem | None) -> ThreadItem:
    """A completed item, with what it does not say taken from its start."""
    if started is None:
        return item
    missing = [name for name in _OF_START if not getattr(item, name)]
    return replace(item, **{name: getattr(started, name) for name in missing})


def find_started(item: ThreadItem, started: Mapping[str, ThreadItem]) -> ThreadItem | None:
    """The start of a completed item: by its id, or the only one of its type when it has none."""
    if item.id:
        return started.get(item.id)
    same = [each for each in started.values() if item.type in ("", each.type)]
    return same[0] if len(same) == 1 else None


def unread_changes(item: ThreadItem) -> list[str]:
    """What could not be read of the changes of a patch."""
    unread = [name for name in item.unread if name.startswith("changes")]
    for number, change in enumerate(item.changes or ()):
        target = get_field(change.kind, "move_path") or get_field(change.kind, "movePath")
        if not change.path or not isinstance(change.kind, str | dict) or not isinstance(target or "", str):
            unread.append(f"changes[{number}]")
    return unread or ([] if item.changes else ["changes"])


def call_without_item(call: RawItem, answer: RawItem) -> tuple[ExternalCall, CallOutcome] | None:
    """A command or patch that Codex reports no item of, such as one that fails at once; None for any other call."""
    text = _content(answer.output)
    if call.name in ("exec_command", "shell", "shell_command", "local_shell"):
        args = parse_arguments(call.arguments) or {}
        command = args.get("cmd") or args.get("command") or call.arguments
        line = shlex.join(map(str, cast("list[object]", command))) if isinstance(command, list) else str(command)
        external = ExternalCall(call.call_id, "shell", {"command": line, "cwd": str(args.get("workdir") or "")})
        return external, CallOutcome(text, failed="exited with code 0" not in text)
    if call.name == "apply_patch":
        external = ExternalCall(call.call_id, "patch", {"patch": call.input or _content(call.arguments)})
        return external, CallOutcome(text, failed=True)
    return None


def is_finished(item: ThreadItem) -> bool:
    """Whether an item of the past ended by itself."""
    return item.status != "inProgress"


def plain_command(command: str) -> str:
    """The command line that a shell is given, without the shell."""
    try:
        words = shlex.split(command)
    except ValueError:
        return command
    folder, _, name = words[0].rpartition("/") if words else ("", "", "")
    is_shell = name in _SHELLS and folder in _SHELL_FOLDERS
    if len(words) == 3 and is_shell and words[1] in ("-lc", "-c"):
        return words[2]
    return command


def is_aborted(text: str) -> bool:
    return any(mark in text for mark in ABORTED)


def render_changes(changes: list[FileUpdateChange]) -> str:
    """Changes as a person reads them in a question."""
    return "\n".join(_render_change(change) for change in changes)


def _render_change(change: FileUpdateChange) -> str:
    target = moved_to(change)
    moved = f", then move it to {target}" if target else ""
    return f"{_kind(change)} {change.path}{moved}\n{change.diff}"


def moved_to(change: FileUpdateChange) -> str:
    """The path that a change moves its file to; empty when it does not."""
    path = get_field(change.kind, "move_path") or get_field(change.kind, "movePath")
    return path if isinstance(path, str) else ""


def _kind(change: FileUpdateChange) -> str:
    kind = get_field(change.kind, "type") or change.kind
    return kind if isinstance(kind, str) else "change"


def _args(arguments: Any) -> Mapping[str, object]:
    if isinstance(arguments, dict):
        return cast("dict[str, object]", arguments)
    return {} if arguments is None else {"arguments": arguments}


def _message(error: Any) -> str:
    text = get_field(error, "message") or error
    return text if isinstance(text, str) else ""


def _content(result: Any, images: ImageCollector | None = None) -> str:
    """The texts of an MCP result or of a function output, with a note for each image; or else its JSON."""
    if isinstance(result, str):
        return result
    parts = get_field(result, "content") or result
    if isinstance(parts, list):
        images = images or ImageCollector()
        values = [_part_text(part, images) for part in cast("list[object]", parts)]
        if texts := [value for value in values if isinstance(value, str)]:
            return "\n".join(texts)
    return "" if result is None else msgspec.json.encode(result).decode()


def _part_text(part: object, images: ImageCollector) -> object:
    kind, data = get_field(part, "type"), get_field(part, "data") or get_field(part, "image_url")
    is_image = kind in ("image", "input_image") and isinstance(data, str)
    return images.add(data) if is_image else get_field(part, "text")


class ItemTracker(Struct):
    """The items of a running turn, as far as Codex has reported them."""

    turn_id: str = ""
    """Codex's id of the turn; empty until it has started."""
    open_items: dict[str, ThreadItem] = field(default_factory=dict[str, ThreadItem])
    """Items that have started and not completed, by their id."""
    raw_calls: dict[str, RawItem] = field(default_factory=dict[str, RawItem])
    """How the model called them, as far as Codex reports that."""
    asked_items: set[str] = field(default_factory=set[str])
    """Items that Codex has asked an approval for."""
    mcp_calls: dict[str, anyio.Event] = field(default_factory=dict[str, anyio.Event])
    """Set once Codex has reported the start of a call of ours over MCP, by its id."""

    def turn_started(self, turn_id: str) -> None:
        self.turn_id = turn_id

    def mcp_call_started(self, item: str) -> anyio.Event:
        return self.mcp_calls.setdefault(item, anyio.Event())


class NotificationReader:
    """Records, shows and counts what the notifications of one turn report."""

    def __init__(self, turn: Turn, recorder: TurnRecorder, watchdog: TurnWatchdog, tracker: ItemTracker) -> None:
        self._turn = turn
        self._recorder = recorder
        self._watchdog = watchdog
        self._tracker = tracker
        self._last_error: CodexError | None = None
        self._is_in_error = False
        self._thread_usage: Usage | None = None
        self._is_compacting = False
        self._abort_item = ""
        """The newest message, if it has the marker of an aborted turn."""
        self._acknowledges_inputs = False
        self._partial_messages: dict[str, list[str]] = {}
        self._assumed_starts = AssumedStarts()
        self._unread = UnreadReporter("Codex", log, lambda text: turn.emit(Delta(text, "note")))
        self._unnamed = 0

    @property
    def last_error(self) -> CodexError | None:
        return self._last_error

    @property
    def thread_usage(self) -> Usage | None:
        """The tokens of all turns of the thread, as far as Codex has reported them."""
        return self._thread_usage

    def set_thread_usage(self, usage: Usage | None) -> None:
        """The tokens of the thread's earlier turns, which do not count for this one; None when they are not known."""
        self._thread_usage = usage

    @property
    def open_error(self) -> CodexError | None:
        """The last error, as long as nothing has followed it."""
        return self._last_error if self._is_in_error else None

    @property
    def acknowledges_inputs(self) -> bool:
        """Whether this Codex reports which of our inputs it has received."""
        return self._acknowledges_inputs

    async def handle(self, message: RpcNotification) -> CodexTurn | None:
        """The turn, once it has completed."""
        params = parse_notification(message.params)
        if params.unread and message.method in USED_NOTIFICATIONS:
            self._unread.report(message.method, params.unread)
        if message.method == "turn/completed":
            # Without an id it is this one: a thread has one turn at a time.
            return params.turn if params.turn.id in ("", self._tracker.turn_id) else None
        if params.turn_id and params.turn_id != self._tracker.turn_id:
            # Of an earlier turn, for example a command that kept running in the background.
            if message.method == "thread/tokenUsage/updated" and params.token_usage.total:
                self._thread_usage = params.token_usage.total.usage()
            return None
        await self._dispatch(message.method, params)
        return None

    async def confirm_starts(self) -> None:
        """Record items as started that no question was asked about within a second. Runs until cancelled."""

        async def confirm(item: str) -> None:
            if item not in self._tracker.asked_items:
                await self._recorder.call_assumed_started(item)

        await self._assumed_starts.confirm_each(confirm)

    async def record_partial_messages(self) -> None:
        """Record what the model had written of its messages when the turn was interrupted."""
        for item, parts in self._partial_messages.items():
            await self._recorder.message_finished(item, "".join(parts))
        self._partial_messages.clear()

    async def _dispatch(self, method: str, params: NotificationParams) -> None:
        now = anyio.current_time()
        if self._abort_item:
            self._watchdog.abort_marked(now)
        match method:
            case "item/started":
                self._watchdog.message_received(now)
                item = self._parse_item(params.item, method)
                self._progress(item.id)
                await self._item_started(item)
            case "item/completed":
                item = self._parse_item(params.item, method)
                self._progress(item.id)
                await self._item_completed(item, now)
            case "item/agentMessage/delta":
                self._watchdog.message_received(now)
                self._progress(params.item_id)
                self._message_delta(params, now)
            case "item/reasoning/summaryTextDelta" | "item/reasoning/textDelta":
                self._watchdog.message_received(now)
                self._progress(params.item_id)
                self._turn.emit(Delta(params.delta, "reasoning"))
            case "thread/tokenUsage/updated":
                self._count_tokens(params.token_usage)
            case "rawResponseItem/completed":
                await self._raw_item_completed(params.item)
            case "error":
                self._watchdog.message_received(now)
                self._error_reported(params)
            case "thread/status/changed":
                self._watchdog.thread_status_changed(thread_status(params.status), now)
            case _ if is_server_request(method):
                raise codex_failed(f"Codex asks for something ({method}) and gives no id to answer it")
            case _:
                pass

    def _progress(self, item: str) -> None:
        """The turn goes on with this item: its model answers, and an earlier message did not abort it."""
        self._is_in_error = False
        if self._abort_item and item != self._abort_item:
            self._abort_item = ""
            self._watchdog.abort_refuted()

    def _check_abort(self, item: str, text: str, now: float) -> None:
        """Only silence after the marker means that the turn is aborted; the model may quote it."""
        if self._abort_item == item or is_aborted(text):
            self._abort_item = item
            self._watchdog.abort_marked(now)

    async def _item_started(self, item: ThreadItem) -> None:
        call = call_of_item(item)
        if call is None:
            if item.type == "mcpToolCall":
                self._tracker.mcp_call_started(item.id).set()
            self._is_compacting = item.type == _COMPACTION
            if item.type in ("agentMessage", "reasoning"):
                # What follows belongs to the next reply.
                await self._recorder.flush()
                self._drop_partial_messages(item.id)
            return
        if not item.id:
            # It is recorded when it completes.
            return
        self._tracker.open_items[item.id] = item
        self._watchdog.tool_started(item.id)
        self._turn.emit(Delta(call.tool, "call"))
        if item.type in _REPORTED_AT_END:
            return
        await self._recorder.call_announced(call, has_begun=is_running(item))
        if not is_running(item):
            self._assumed_starts.add(item.id)

    def _drop_partial_messages(self, item: str) -> None:
        """Forget messages that never complete, because an input during the turn made the model begin again."""
        stale = [message for message in self._partial_messages if message != item]
        for message in stale:
            del self._partial_messages[message]
        if stale:
            self._turn.emit(Delta("Codex began its reply again", "reset"))

    async def _item_completed(self, item: ThreadItem, now: float) -> None:
        item = complete_item(item, find_started(item, self._tracker.open_items))
        self._tracker.open_items.pop(item.id, None)
        self._is_compacting = self._is_compacting and item.type != _COMPACTION
        match item.type:
            case "userMessage":
                self._watchdog.message_received(now)
                if seq := parse_client_id(item.client_id):
                    self._acknowledges_inputs = True
                    await self._recorder.flush()
                    self._recorder.input_seen(seq)
            case "agentMessage":
                self._watchdog.message_received(now)
                streamed = "".join(self._partial_messages.pop(item.id, ()) or self._partial_messages.pop("", ()))
                text = item.text if item.text is not None else streamed or UNREAD_MESSAGE
                id = item.id or self._new_item_id()
                await self._recorder.message_finished(id, text)
                self._check_abort(id, text, now)
            case _:
                if call := call_of_item(item):
                    self._watchdog.tool_ended(item.id, now)
                    if not call.item_id:
                        call = replace(call, item_id=self._new_item_id())
                    await self._recorder.call_finished(call, outcome_of_item(item))
                elif is_our_tool(item):
                    self._watchdog.tool_ended(item.id, now)
                    await self._record_undelivered_call(item)
                else:
                    self._watchdog.message_received(now)
                    if item.type not in SILENT_TYPES:
                        self._unread.report("item", [f"the type `{item.type[:100]}`"])

    def _parse_item(self, raw: Raw, method: str) -> ThreadItem:
        item = parse_item(raw)
        self._unread.report(method, item.unread)
        return item

    def _new_item_id(self) -> str:
        """For an item whose own id cannot be read."""
        self._unnamed += 1
        return f"{self._tracker.turn_id}-unnamed-{self._unnamed}"

    async def _record_undelivered_call(self, item: ThreadItem) -> None:
        """Record a call of our tool that did not reach us, for example because another server has our name."""
        if item.type == "mcpToolCall" and not self._recorder.has_seen(item.id):
            call = parse_our_call(item.id, item.tool or "", item.arguments)
            await self._recorder.call_finished(call, outcome_of_item(item))

    def _message_delta(self, params: NotificationParams, now: float) -> None:
        parts = self._partial_messages.setdefault(params.item_id, [])
        parts.append(params.delta)
        self._turn.emit(Delta(params.delta))
        failpoint("mid_reply")
        self._check_abort(params.item_id, "".join(parts[-_ABORT_WINDOW:]), now)

    def _error_reported(self, params: NotificationParams) -> None:
        self._last_error, self._is_in_error = params.error, True
        if params.will_retry:
            self._partial_messages.clear()
            self._turn.emit(Delta(render_retry(params.error), "reset"))

    def _count_tokens(self, reported: ThreadTokenUsage) -> None:
        """Count what was added to the total of the thread. `last` is reported again when a compaction begins."""
        before, last = self._thread_usage, reported.last.usage()
        if reported.total is None:
            added = last
        elif before is not None:
            added = reported.total.usage() - before
        else:
            # This Codex did not report the total when the thread was resumed.
            added = Usage() if self._is_compacting else last
            before = reported.total.usage() - added
        self._thread_usage = before + added if before is not None else None
        self._recorder.add_usage(added)

    async def _raw_item_completed(self, raw: Raw) -> None:
        """Record what Codex reports no item of: a command that fails at once, a patch that does not apply."""
        item = parse_raw_item(raw)
        if item.type in ("function_call", "custom_tool_call"):
            self._tracker.raw_calls[item.call_id] = item
        elif item.type in ("function_call_output", "custom_tool_call_output"):
            raw_call = self._tracker.raw_calls.pop(item.call_id, None)
            finished = call_without_item(raw_call, item) if raw_call else None
            if finished and self._is_unreported(item.call_id, finished[1]):
                call, outcome = finished
                started = self._tracker.open_items.pop(item.call_id, None)
                self._watchdog.tool_ended(item.call_id, anyio.current_time())
                await self._recorder.call_finished((call_of_item(started) if started else None) or call, outcome)

    def _is_unreported(self, item: str, outcome: CallOutcome) -> bool:
        """Whether no item reports this call, or one that started and never completes.

        Codex reports the end of an item before the model gets its output.
        """
        is_open = item in self._tracker.open_items
        return EXITED_TEXT in outcome.text if is_open else not self._recorder.has_seen(item)
