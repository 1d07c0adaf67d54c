"""What Codex asks for, as a request to rules, grants and people; and the answer in its own words. Pure."""

from typing import Any

import msgspec
from msgspec import Struct

from outrider.core.approve import HOST, NETWORK, ApprovalRequest, Verdict
from outrider.runtimes.codex.fence import SandboxPolicy, command_needs, patch_needs
from outrider.runtimes.codex.items import plain_command, render_changes
from outrider.runtimes.codex.wire import RawItem, ServerRequestParams, ThreadItem, get_field
from outrider.runtimes.outside.ledger import ExternalCall

COMMAND = "item/commandExecution/requestApproval"
PATCH = "item/fileChange/requestApproval"
PERMISSIONS = "item/permissions/requestApproval"
ELICITATION = "mcpServer/elicitation/request"
TOOL_CALL = "item/tool/call"
QUESTION_METHODS = frozenset({COMMAND, PATCH, PERMISSIONS, ELICITATION})


class ApprovalContext(Struct, frozen=True):
    """The thread that asks."""

    workspace: str
    sandbox_policy: SandboxPolicy = SandboxPolicy()
    raw_call: RawItem | None = None
    """How its model called what it asks about."""


def parse_approval_request(
    method: str, wish: ServerRequestParams, item: ThreadItem | None, asker: ApprovalContext
) -> ApprovalRequest:
    """What a person is asked. The command is shown as it would run, a patch with all it changes."""
    workspace = asker.workspace
    why = wish.reason or ""
    match method:
        case "item/commandExecution/requestApproval":
            command, cwd = plain_command(wish.command or (item.command if item else "") or ""), wish.cwd or workspace
            shown = command if cwd == workspace else f"(in {cwd}) {command}"
            more = wish.additional_permissions
            needs = _needs(more) if more else command_needs(asker.sandbox_policy, wish, asker.raw_call)
            return ApprovalRequest("shell", shown, needs, workspace, why)
        case "item/fileChange/requestApproval":
            changes = (item.changes if item else None) or []
            paths = dict.fromkeys(change.path for change in changes)
            needs = patch_needs(asker.sandbox_policy, paths, workspace) if paths else (HOST,)
            return ApprovalRequest("patch", render_changes(changes) or "(it did not say what)", needs, workspace, why)
        case "item/permissions/requestApproval":
            return ApprovalRequest(
                "codex", f"more permissions: {_json(wish.permissions)}", _needs(wish.permissions), workspace
            )
        case _:
            tool = f"mcp_{wish.server_name}"
            shown = wish.message or "use a tool"
            args = item.arguments if item and item.arguments is not None else get_field(wish.meta, "tool_params")
            return ApprovalRequest(tool, f"{shown}\n{_json(args)}" if args else shown, (HOST,), workspace, why)


def call_of_request(method: str, wish: ServerRequestParams, number: object, workspace: str) -> ExternalCall:
    """What a question is about that belongs to no item."""
    item = wish.item_id or f"{wish.turn_id}-asks-{number}"
    match method:
        case "item/commandExecution/requestApproval":
            return ExternalCall(
                item, "shell", {"command": plain_command(wish.command or ""), "cwd": wish.cwd or workspace}
            )
        case "item/permissions/requestApproval":
            return ExternalCall(item, "permissions", {"permissions": wish.permissions, "reason": wish.reason or ""})
        case "mcpServer/elicitation/request":
            return ExternalCall(item, f"mcp_{wish.server_name}", {"message": wish.message})
        case _:
            return ExternalCall(item, "patch", {})


def is_yes_no(method: str, wish: ServerRequestParams) -> bool:
    """Whether yes or no is an answer: a form that wants to be filled in has none here."""
    return method != ELICITATION or not get_field(wish.requested_schema, "properties")


def render_response(method: str, wish: ServerRequestParams, verdict: Verdict) -> dict[str, Any]:
    """The answer as Codex wants it. A yes is for this once: how far it reaches is kept by us."""
    is_yes = verdict == "allow"
    match method:
        case "item/permissions/requestApproval":
            return {"permissions": wish.permissions if is_yes else {}, "scope": "turn"}
        case "mcpServer/elicitation/request":
            return {"action": "accept", "content": {}} if is_yes else {"action": "decline"}
        case _:
            return {"decision": "accept" if is_yes else "decline"}


def has_no_item(method: str) -> bool:
    """Whether no item will tell what came of it."""
    return method == PERMISSIONS


def _needs(permissions: Any) -> tuple[str, ...]:
    """Only the network when that is all that is wanted; else all there is."""
    wanted = {name for name in ("network", "fileSystem") if get_field(permissions, name)}
    return (NETWORK,) if wanted == {"network"} else (HOST,)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
