"""What the commands of a thread may do, and which of them Codex asks about."""

import os
from collections.abc import Iterable
from pathlib import PurePath
from typing import Any, cast

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from outrider.config.environment import absolute_path
from outrider.config.schema import Config
from outrider.core.approvals import HOST, Rule
from outrider.runtimes.codex.protocol import RawItem, ServerRequestParams, get_field

CODEX_SANDBOX = "codex"
"""The need of a command that stays in Codex's own sandbox."""
UNTRUSTED, OPEN = "untrusted", "danger-full-access"
_PROFILE = "outrider"
_EXTENDS = {"workspace-write": ":workspace", "read-only": ":read-only"}
_COMMAND_TOOLS = ("exec_command", "shell", "shell_command", "local_shell")
_PROTECTED = frozenset({".git", ".codex", ".agents", ".aws"})
"""Folders of a workspace that Codex's sandbox keeps as they are."""


class SandboxPolicy(Struct, frozen=True):
    """On which terms the commands of a thread run."""

    approval: str = "on-request"
    """As the person set it."""
    sandbox: str = "workspace-write"
    has_rules: bool = False
    """A rule may speak of a command or a patch: Codex asks about each, and what no rule speaks of is allowed."""
    is_enforced: bool = False
    """What was allowed stays in the sandbox. Without a profile of ours, Codex runs what its sandbox stopped once more,
    outside, when it was allowed under `untrusted`."""
    rollout_path: str = ""
    """The file that Codex keeps of the thread."""

    @property
    def approval_policy(self) -> str:
        """What Codex is told to ask about."""
        return UNTRUSTED if self.has_rules else self.approval


def sandbox_policy_of(config: Config, workspace: str) -> SandboxPolicy:
    return SandboxPolicy(config.codex.approval, config.codex.sandbox, has_rules=_has_rules(config.rules, workspace))


def permission_profile(config: Config, settings: Raw | None) -> dict[str, Any]:
    """Parameters for a sandbox as it is set, which hides the home of Outrider. `settings` are those of Codex."""
    kind = config.codex.sandbox
    if kind not in _EXTENDS:
        return {"sandbox": kind, "config": {}}
    home = os.path.realpath(config.home)
    files = {home: "deny"}
    own = os.path.realpath(absolute_path(config.codex.home) or config.codex.home) if config.codex.home else ""
    if own and PurePath(own).is_relative_to(home):
        files[own] = "read"
    written: dict[str, Any] = {"extends": _EXTENDS[kind], "filesystem": files}
    found = (
        get_field(get_field(msgspec.json.decode(settings), "config"), "sandbox_workspace_write") if settings else None
    )
    if kind == "workspace-write":
        roots = cast("list[object]", get_field(found, "writable_roots") or [])
        files |= {root: "write" for root in roots if isinstance(root, str)}
        files |= {":slash_tmp": "read"} if get_field(found, "exclude_slash_tmp") else {}
        files |= {":tmpdir": "read"} if get_field(found, "exclude_tmpdir_env_var") else {}
        if config.sandbox.network or get_field(found, "network_access"):
            written["network"] = {"enabled": True}
    return {"permissions": _PROFILE, "config": {"permissions": {_PROFILE: written}}}


def without_profile(params: dict[str, Any], fence: SandboxPolicy) -> dict[str, Any]:
    """The same for a Codex that knows no profiles."""
    config = {name: value for name, value in params["config"].items() if name != "permissions"}
    rest = {name: value for name, value in params.items() if name != "permissions"}
    return {**rest, "config": config, "sandbox": fence.sandbox}


def parse_sandbox_policy(answer: Raw, fence: SandboxPolicy) -> SandboxPolicy:
    """What became of it: whether the thread is in the sandbox that was asked for."""
    found = msgspec.json.decode(answer)
    path = get_field(get_field(found, "thread"), "path")
    holds = get_field(get_field(found, "activePermissionProfile"), "id") == _PROFILE
    return replace(fence, is_enforced=holds, rollout_path=path if isinstance(path, str) else "")


def command_needs(fence: SandboxPolicy, params: ServerRequestParams, called: RawItem | None) -> tuple[str, ...]:
    """What a command needs; `called` is how the model called it. In doubt it leaves the sandbox."""
    is_unasked = fence.has_rules and fence.approval != UNTRUSTED
    if is_unasked and fence.sandbox == OPEN:
        return ()
    if not fence.is_enforced or params.reason or not _stays_in_sandbox(called):
        return (HOST,)
    return () if is_unasked else (CODEX_SANDBOX,)


def patch_needs(fence: SandboxPolicy, paths: Iterable[str], workspace: str) -> tuple[str, ...]:
    """What a patch needs. Codex applies what is allowed without its sandbox."""
    is_unasked = fence.has_rules and fence.approval != UNTRUSTED
    if is_unasked and fence.sandbox == OPEN:
        return ()
    is_free = is_unasked and fence.sandbox == "workspace-write"
    return tuple(f"write:{path}" for path in paths if not (is_free and _is_within(path, workspace)))


def _has_rules(rules: Iterable[Rule], workspace: str) -> bool:
    return any(
        rule.verdict != "allow"
        and rule.tool in ("*", "shell", "patch")
        and (not rule.workspace or rule.workspace.rstrip("/") == workspace.rstrip("/"))
        for rule in rules
    )


def _stays_in_sandbox(called: RawItem | None) -> bool:
    if called is None or called.name not in _COMMAND_TOOLS:
        return False
    try:
        found = msgspec.json.decode(called.arguments, type=dict[str, Any])
    except msgspec.DecodeError:
        return False
    asks = ("additional_permissions", "with_escalated_permissions")
    return not any(map(found.get, asks)) and found.get("sandbox_permissions") in (None, "use_default")


def _is_within(path: str, workspace: str) -> bool:
    """Whether Codex's sandbox would have let this be written: in the workspace, and not what is kept there."""
    root = PurePath(os.path.realpath(workspace))
    real = PurePath(os.path.realpath(root / path))
    return real.is_relative_to(root) and not _PROTECTED.intersection(real.relative_to(root).parts)
