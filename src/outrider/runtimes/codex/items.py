"""What Codex did, in our words. Pure."""

import shlex
from collections.abc import Mapping
from typing import Any, cast

import msgspec

from outrider.runtimes.codex.tools import SERVER
from outrider.runtimes.codex.wire import FileUpdateChange, RawItem, ThreadItem, get_field
from outrider.runtimes.outside.ledger import CallOutcome, ExternalCall

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
