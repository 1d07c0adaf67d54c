"""Tool calls of an ACP agent in our words: what it does, what came of it, and what a person is asked. Pure."""

import difflib
import shlex
from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from outrider.core.approvals import HOST, ApprovalRequest
from outrider.runtimes.acp.protocol import (
    NULL,
    ContentBlock,
    PermissionOption,
    PlanEntry,
    ToolCallUpdate,
    parse_object,
    parse_or_none,
)
from outrider.runtimes.external.recorder import CallOutcome, ExternalCall, clip_middle

FINAL_STATUSES = frozenset({"completed", "failed"})
_MAX_REQUEST = 4_000
"""Characters of what is asked about."""
_TOOLS = {"execute": "shell"} | {kind: kind for kind in ("read", "edit", "delete", "move", "search", "fetch", "think")}


class AcpToolCall(Struct, frozen=True):
    """A tool call as far as it has been told."""

    id: str
    title: str = ""
    kind: str = ""
    status: str = "pending"
    content: Raw = NULL
    input: Raw = NULL
    output: Raw = NULL

    @property
    def is_specified(self) -> bool:
        """Whether it is told what it does: some agents announce a call while its arguments are still being written."""
        return self.status != "pending" or bool(parse_object(self.input))


def apply_update(before: AcpToolCall | None, update: ToolCallUpdate) -> AcpToolCall:
    """What is known of a call after this; nothing need have been told before."""
    was = before or AcpToolCall(update.tool_call_id)
    return replace(
        was,
        title=update.title or was.title,
        kind=update.kind or was.kind,
        status=update.status or was.status,
        content=_newer(update.content, was.content),
        input=_newer(update.raw_input, was.input),
        output=_newer(update.raw_output, was.output),
    )


def external_call_of(tool_call: AcpToolCall, prompt: str) -> ExternalCall:
    """`prompt` is where the call was made: ids of calls need not differ from one to the next."""
    args = parse_object(tool_call.input)
    return ExternalCall(
        f"{prompt}/{tool_call.id}", _TOOLS.get(tool_call.kind, "tool"), args or {"what": tool_call.title}
    )


def outcome_of(tool_call: AcpToolCall) -> CallOutcome:
    """What came of a call that has ended."""
    text = _render_content(tool_call.content) or _render_json(tool_call.output)
    is_failed = tool_call.status == "failed"
    return CallOutcome(text or ("it failed" if is_failed else "done"), is_failed, details=tool_call.title[:200])


def approval_request_of(tool_call: AcpToolCall, workspace: str) -> ApprovalRequest:
    """What the agent wants to be allowed. It does it itself, with no sandbox of ours around it."""
    args = parse_object(tool_call.input)
    command = _command(args)
    if not command:
        shown = _render_content(tool_call.content) or (_render_json(tool_call.input) if args else "")
        command = (
            "\n".join(part for part in (tool_call.title, shown) if part)
            or tool_call.kind
            or "something it does not name"
        )
    why = args.get("description")
    said = why if isinstance(why, str) and why != command else ""
    return ApprovalRequest(
        _TOOLS.get(tool_call.kind, "tool"),
        clip_middle(command, _MAX_REQUEST),
        (HOST,),
        workspace,
        clip_middle(said, _MAX_REQUEST),
    )


def choose_option(options: Sequence[PermissionOption], *, is_allowed: bool) -> PermissionOption | None:
    """The option that means this and no more, by its kind: names and ids differ from agent to agent.

    A yes that reaches further is a grant of ours, which is listed and can be taken back; an agent might keep its own
    for longer than was meant.
    """
    kinds = ("allow_once",) if is_allowed else ("reject_once", "reject_always")
    return next((option for kind in kinds for option in options if option.kind == kind), None)


def is_same_call(one: Mapping[str, object], other: Mapping[str, object]) -> bool:
    """Whether these arguments ask for the very same: what is only said about a command does not count."""
    return (_command(one) or dict(one)) == (_command(other) or dict(other))


def content_text(raw: Raw) -> str:
    """The words of one piece of content; of what is no text, what it is."""
    content = parse_or_none(raw, ContentBlock)
    if content is None:
        return ""
    match content.type:
        case "text":
            return content.text or ""
        case "resource_link":
            return f"[{content.name or content.uri or 'a link'}]"
        case "":
            return ""
        case kind:
            return f"[{kind.replace('_', ' ')}]"


def render_plan(raw: Raw) -> str:
    """The agent's plan in one line; empty when there is none."""
    entries = parse_or_none(raw, tuple[PlanEntry, ...]) or ()
    if not entries:
        return ""
    done = sum(entry.status == "completed" for entry in entries)
    now = next((entry.content for entry in entries if entry.status == "in_progress"), "")
    return f"plan: {done} of {len(entries)} done" + (f"; now: {clip_middle(now, 200)}" if now else "")


def _newer(update: Raw, was: Raw) -> Raw:
    return was if bytes(update) == b"null" else Raw(bytes(update))


def _command(args: Mapping[str, object]) -> str:
    try:
        words = msgspec.convert(args.get("command"), str | tuple[str, ...])
    except msgspec.ValidationError:
        return ""
    return words if isinstance(words, str) else shlex.join(words)


def _render_content(raw: Raw) -> str:
    parts = parse_or_none(raw, tuple[ContentBlock, ...]) or ()
    return "\n".join(text for part in parts if (text := _render_part(part)))


def _render_part(part: ContentBlock) -> str:
    match part.type:
        case "content":
            return content_text(part.content)
        case "diff":
            path = part.path or "a file"
            old, new = (part.old_text or "").splitlines(), (part.new_text or "").splitlines()
            return "\n".join(difflib.unified_diff(old, new, path, path, lineterm="", n=2))
        case _:
            return ""


def _render_json(raw: Raw) -> str:
    if bytes(raw) == b"null":
        return ""
    value = parse_or_none(raw, str)
    return value if value is not None else msgspec.json.format(bytes(raw), indent=0).decode()
