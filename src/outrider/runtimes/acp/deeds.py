"""Tool calls of an ACP agent in our words: what it does, what came of it, and what a person is asked. Pure."""

import difflib
import shlex
from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from outrider.core.approve import HOST, ApprovalRequest
from outrider.runtimes.acp.wire import NULL, Content, Option, PlanEntry, ToolCall, lenient, objects
from outrider.runtimes.outside.ledger import Deed, Outcome, bounded

ENDS = frozenset({"completed", "failed"})
_LONGEST = 4_000
"""Characters of what is asked about."""
_TOOLS = {"execute": "shell"} | {kind: kind for kind in ("read", "edit", "delete", "move", "search", "fetch", "think")}


class Wanted(Struct, frozen=True):
    """A tool call as far as it has been told."""

    id: str
    title: str = ""
    kind: str = ""
    status: str = "pending"
    content: Raw = NULL
    input: Raw = NULL
    output: Raw = NULL

    @property
    def is_clear(self) -> bool:
        """Whether it is told what it does: some agents announce a call while its arguments are still being written."""
        return self.status != "pending" or bool(objects(self.input))


def changed(before: Wanted | None, told: ToolCall) -> Wanted:
    """What is known of a call after this; nothing need have been told before."""
    was = before or Wanted(told.tool_call_id)
    return replace(
        was,
        title=told.title or was.title,
        kind=told.kind or was.kind,
        status=told.status or was.status,
        content=_newer(told.content, was.content),
        input=_newer(told.raw_input, was.input),
        output=_newer(told.raw_output, was.output),
    )


def deed_of(wanted: Wanted, prompt: str) -> Deed:
    """`prompt` is where the call was made: ids of calls need not differ from one to the next."""
    args = objects(wanted.input)
    return Deed(f"{prompt}/{wanted.id}", _TOOLS.get(wanted.kind, "tool"), args or {"what": wanted.title})


def outcome_of(wanted: Wanted) -> Outcome:
    """What came of a call that has ended."""
    text = _shown(wanted.content) or _plain(wanted.output)
    is_failed = wanted.status == "failed"
    return Outcome(text or ("it failed" if is_failed else "done"), is_failed, details=wanted.title[:200])


def request_of(wanted: Wanted, workspace: str) -> ApprovalRequest:
    """What the agent wants to be allowed. It does it itself, with no sandbox of ours around it."""
    args = objects(wanted.input)
    command = _command(args)
    if not command:
        shown = _shown(wanted.content) or (_plain(wanted.input) if args else "")
        command = (
            "\n".join(part for part in (wanted.title, shown) if part) or wanted.kind or "something it does not name"
        )
    why = args.get("description")
    said = why if isinstance(why, str) and why != command else ""
    return ApprovalRequest(
        _TOOLS.get(wanted.kind, "tool"), bounded(command, _LONGEST), (HOST,), workspace, bounded(said, _LONGEST)
    )


def choose(options: Sequence[Option], *, is_allowed: bool) -> Option | None:
    """The option that means this and no more, by its kind: names and ids differ from agent to agent.

    A yes that reaches further is a grant of ours, which is listed and can be taken back; an agent might keep its own
    for longer than was meant.
    """
    kinds = ("allow_once",) if is_allowed else ("reject_once", "reject_always")
    return next((option for kind in kinds for option in options if option.kind == kind), None)


def is_same(one: Mapping[str, object], other: Mapping[str, object]) -> bool:
    """Whether these arguments ask for the very same: what is only said about a command does not count."""
    return (_command(one) or dict(one)) == (_command(other) or dict(other))


def text_of(raw: Raw) -> str:
    """The words of one piece of content; of what is no text, what it is."""
    content = lenient(raw, Content)
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


def plan_of(raw: Raw) -> str:
    """The agent's plan in one line; empty when there is none."""
    entries = lenient(raw, tuple[PlanEntry, ...]) or ()
    if not entries:
        return ""
    done = sum(entry.status == "completed" for entry in entries)
    now = next((entry.content for entry in entries if entry.status == "in_progress"), "")
    return f"plan: {done} of {len(entries)} done" + (f"; now: {bounded(now, 200)}" if now else "")


def _newer(told: Raw, was: Raw) -> Raw:
    return was if bytes(told) == b"null" else Raw(bytes(told))


def _command(args: Mapping[str, object]) -> str:
    try:
        words = msgspec.convert(args.get("command"), str | tuple[str, ...])
    except msgspec.ValidationError:
        return ""
    return words if isinstance(words, str) else shlex.join(words)


def _shown(raw: Raw) -> str:
    parts = lenient(raw, tuple[Content, ...]) or ()
    return "\n".join(text for part in parts if (text := _part(part)))


def _part(part: Content) -> str:
    match part.type:
        case "content":
            return text_of(part.content)
        case "diff":
            path = part.path or "a file"
            old, new = (part.old_text or "").splitlines(), (part.new_text or "").splitlines()
            return "\n".join(difflib.unified_diff(old, new, path, path, lineterm="", n=2))
        case _:
            return ""


def _plain(raw: Raw) -> str:
    if bytes(raw) == b"null":
        return ""
    value = lenient(raw, str)
    return value if value is not None else msgspec.json.format(bytes(raw), indent=0).decode()
