"""Tool calls of an ACP agent: parsed into our calls, outcomes and approval requests. Pure."""

import difflib
import shlex
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from outrider.core.approvals import HOST, ApprovalRequest, RequestDetail, argument_details
from outrider.runtimes.acp.protocol import (
    NULL,
    ContentBlock,
    PermissionOption,
    PlanEntry,
    ToolCallUpdate,
    parse_object,
    parse_or_none,
)
from outrider.runtimes.external.images import ImageCollector
from outrider.runtimes.external.recorder import CallOutcome, ExternalCall, clip_middle

FINAL_STATUSES = frozenset({"completed", "failed"})
_TOOLS = {"execute": "shell"} | {kind: kind for kind in ("read", "edit", "delete", "move", "search", "fetch", "think")}


class AcpToolCall(Struct, frozen=True):
    """A tool call as far as it has been reported."""

    id: str
    title: str = ""
    kind: str = ""
    status: str = "pending"
    content: Raw = NULL
    input: Raw = NULL
    output: Raw = NULL

    @property
    def input_is_complete(self) -> bool:
        """Whether it has arguments, and for a command the command."""
        args = parse_object(self.input)
        return bool(_command(args) if self.kind == "execute" else args)

    @property
    def is_specified(self) -> bool:
        """Whether its arguments are complete. Agents report a call while its model still writes them: the first report
        of a command may contain nothing, or only its folder."""
        return self.status != "pending" or self.input_is_complete


def apply_update(before: AcpToolCall | None, update: ToolCallUpdate) -> AcpToolCall:
    """The call after this update, which may be its first one."""
    call = before or AcpToolCall(update.tool_call_id)
    return replace(
        call,
        title=update.title or call.title,
        kind=update.kind or call.kind,
        status=update.status or call.status,
        content=_newer(update.content, call.content),
        input=_newer(update.raw_input, call.input),
        output=_newer(update.raw_output, call.output),
    )


def complete_from(permission: ToolCallUpdate, before: AcpToolCall | None) -> AcpToolCall:
    """The call that a permission is requested for. The request completes it, and changes nothing that was complete:
    it may show the call in another form, and it does not mean that a running call is pending again."""
    if before is None:
        return apply_update(None, permission)
    if before.input_is_complete:
        return before
    return replace(apply_update(before, permission), id=before.id, status=before.status)


def find_same_call(permission: ToolCallUpdate, calls: Iterable[AcpToolCall]) -> AcpToolCall | None:
    """The first of these calls that does what the permission is requested for, where the ids do not say.

    Equal arguments decide; a call that was reported without its arguments is recognized by the command it shows.
    """
    asked, candidates = apply_update(None, permission), [call for call in calls if not _differ(call.kind, permission)]
    args, command = parse_object(asked.input), _command(parse_object(asked.input))
    for call in candidates:
        others = parse_object(call.input)
        if args and others and (args == others or (command and command == _command(others))):
            return call
    for call in candidates:
        if not parse_object(call.input) or not args:
            one, other = (asked, call) if args else (call, asked)
            if _shows(other, _command(parse_object(one.input))) or _subject(one.title) == _subject(other.title) != "":
                return call
    return None


def external_call_of(tool_call: AcpToolCall, prompt: str) -> ExternalCall:
    """The call as it is recorded. Ids of calls may repeat from one `prompt` to the next."""
    args = parse_object(tool_call.input)
    if args.get("background") is True:
        # With this name, it would be a call of our own `shell`.
        args = {name: value for name, value in args.items() if name != "background"} | {"in_background": True}
    return ExternalCall(
        f"{prompt}/{tool_call.id}", _TOOLS.get(tool_call.kind, "tool"), args or {"what": tool_call.title}
    )


def outcome_of(tool_call: AcpToolCall) -> CallOutcome:
    images = ImageCollector()
    text = _render_content(tool_call.content, images) or _render_json(tool_call.output)
    is_failed = tool_call.status == "failed"
    if not text:
        done = "done; the agent did not report its output" if tool_call.kind == "execute" else "done"
        text = "it failed" if is_failed else done
    return CallOutcome(text, is_failed, tool_call.title[:200], tuple(images.images))


def approval_request_of(tool_call: AcpToolCall, workspace: str) -> ApprovalRequest:
    """What a person is asked, with every argument. The agent runs the call itself, without our sandbox."""
    args = parse_object(tool_call.input)
    command, why = _command(args), ""
    if command:
        description = args.get("description")
        why = description if isinstance(description, str) and description != command else ""
        args = {name: value for name, value in args.items() if name not in ("command", "description")}
    elif not args and bytes(tool_call.input) not in (b"null", b"{}"):
        args = {"input": _render_json(tool_call.input)}
    details = argument_details({name: value for name, value in args.items() if not _is_timeout(name, value)})
    content = _render_content(tool_call.content)
    if content and content != command:
        details = (*details, RequestDetail("Shown by the agent", content))
    title = tool_call.title or ("" if details else tool_call.kind or "(the agent did not say what)")
    return ApprovalRequest(_TOOLS.get(tool_call.kind, "tool"), command or title, (HOST,), workspace, why, details)


def _is_timeout(name: str, value: object) -> bool:
    """How long the agent waits changes nothing that is done."""
    return name == "timeout" and isinstance(value, int | float)


def choose_option(options: Sequence[PermissionOption], *, is_allowed: bool) -> PermissionOption | None:
    """The option that means exactly this, by its kind: names and ids differ between agents.

    A yes that reaches further is a permission of ours, which is listed and can be revoked; an agent might keep its own
    for longer.
    """
    kinds = ("allow_once",) if is_allowed else ("reject_once", "reject_always")
    return next((option for kind in kinds for option in options if option.kind == kind), None)


def content_text(raw: Raw, images: ImageCollector | None = None) -> str:
    """The text of a content block; of another block, its name or type. Images are added to `images`."""
    content = parse_or_none(raw, ContentBlock)
    if content is None:
        return ""
    match content.type:
        case "image" if images and content.data:
            return images.add(content.data)
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


def _differ(kind: str, permission: ToolCallUpdate) -> bool:
    return bool(kind and permission.kind) and kind != permission.kind


def _subject(title: str) -> str:
    """What a title is about, without a prefix of the agent such as `write: `."""
    return title.partition(": ")[2] or title


def _shows(call: AcpToolCall, command: str) -> bool:
    """Whether the title or the content of a call is this command, after a prefix of the agent."""
    content = _render_content(call.content)
    texts = (call.title, content, *content.split("\n"))
    return bool(command) and any(text == command or text.endswith((f": {command}", f"$ {command}")) for text in texts)


def _newer(update: Raw, before: Raw) -> Raw:
    return before if bytes(update) == b"null" else Raw(bytes(update))


def _command(args: Mapping[str, object]) -> str:
    try:
        words = msgspec.convert(args.get("command"), str | tuple[str, ...])
    except msgspec.ValidationError:
        return ""
    return words if isinstance(words, str) else shlex.join(words)


def _render_content(raw: Raw, images: ImageCollector | None = None) -> str:
    parts = parse_or_none(raw, tuple[ContentBlock, ...]) or ()
    return "\n".join(text for part in parts if (text := _render_part(part, images)))


def _render_part(part: ContentBlock, images: ImageCollector | None) -> str:
    match part.type:
        case "content":
            return content_text(part.content, images)
        case "diff":
            path = part.path or "a file"
            old, new = (text.split("\n") if text else [] for text in (part.old_text, part.new_text))
            return "\n".join(difflib.unified_diff(old, new, path, path, lineterm="", n=2))
        case _:
            return ""


def _render_json(raw: Raw) -> str:
    if bytes(raw) == b"null":
        return ""
    value = parse_or_none(raw, str)
    return value if value is not None else msgspec.json.format(bytes(raw), indent=0).decode()
