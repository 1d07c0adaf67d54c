"""Sandbox policy of a Codex thread: what its commands may do, and which of them need an approval."""

import os
from collections.abc import Iterable
from pathlib import PurePath
from typing import Any, cast

from msgspec import Raw, Struct
from msgspec.structs import replace

from outrider.config.environment import absolute_path
from outrider.config.schema import Config
from outrider.core.approvals import HOST, Rule
from outrider.runtimes.codex.protocol import RawItem, ServerRequestParams, get_field, parse_arguments
from outrider.runtimes.jsonrpc.decoding import decode_any

CODEX_SANDBOX = "codex"
"""The need of a command that runs in Codex's own sandbox."""
UNTRUSTED, OPEN = "untrusted", "danger-full-access"
_PROFILE = "outrider"
_EXTENDS = {"workspace-write": ":workspace", "read-only": ":read-only"}
_COMMAND_TOOLS = ("exec_command", "shell", "shell_command", "local_shell")
PROTECTED_FOLDERS = (".git", ".codex", ".agents", ".aws")
"""Folders of a workspace that Codex's sandbox does not let commands change."""


class SandboxPolicy(Struct, frozen=True):
    """How the commands of a thread are run and approved."""

    approval: str = "on-request"
    """`codex.approval`, as the person set it."""
    sandbox: str = "workspace-write"
    has_rules: bool = False
    """Rules may match commands or patches, so Codex asks about each of them; what no rule matches is allowed."""
    is_enforced: bool = False
    """Allowed commands stay in the sandbox. Without our permission profile, Codex repeats a command that its sandbox
    stopped outside of the sandbox when it was allowed under `untrusted`."""
    rollout_path: str = ""
    """The file in which Codex records the thread."""

    @property
    def approval_policy(self) -> str:
        """The approval policy that Codex is given."""
        return UNTRUSTED if self.has_rules else self.approval


def sandbox_policy_of(config: Config, workspace: str) -> SandboxPolicy:
    return SandboxPolicy(config.codex.approval, config.codex.sandbox, has_rules=_has_rules(config.rules, workspace))


def permission_profile(config: Config, settings: Raw | None) -> dict[str, Any]:
    """Thread parameters for the sandbox that is set, with Outrider's home hidden. `settings` are those of Codex."""
    kind = config.codex.sandbox
    if kind not in _EXTENDS:
        return {"sandbox": kind, "config": {}}
    home = os.path.realpath(config.home)
    files = {home: "deny"}
    own = os.path.realpath(absolute_path(config.codex.home) or config.codex.home) if config.codex.home else ""
    if own and PurePath(own).is_relative_to(home):
        files[own] = "read"
    profile: dict[str, Any] = {"extends": _EXTENDS[kind], "filesystem": files}
    config_of_codex = get_field(decode_any(settings), "config") if settings else None
    own_settings = get_field(config_of_codex, "sandbox_workspace_write")
    if kind == "workspace-write":
        roots = get_field(own_settings, "writable_roots")
        listed = cast("list[object]", roots) if isinstance(roots, list) else []
        files |= {root: "write" for root in listed if isinstance(root, str)}
        files |= {":slash_tmp": "read"} if get_field(own_settings, "exclude_slash_tmp") else {}
        files |= {":tmpdir": "read"} if get_field(own_settings, "exclude_tmpdir_env_var") else {}
        if config.sandbox.network or get_field(own_settings, "network_access") is True:
            profile["network"] = {"enabled": True}
    return {"permissions": _PROFILE, "config": {"permissions": {_PROFILE: profile}}}


def without_profile(params: dict[str, Any], policy: SandboxPolicy) -> dict[str, Any]:
    """The same parameters for a Codex that has no permission profiles."""
    config = {name: value for name, value in params["config"].items() if name != "permissions"}
    rest = {name: value for name, value in params.items() if name != "permissions"}
    return {**rest, "config": config, "sandbox": policy.sandbox}


def parse_sandbox_policy(answer: Raw, requested: SandboxPolicy) -> SandboxPolicy:
    """The policy that the thread really has: whether it is in the requested sandbox."""
    response = decode_any(answer)
    path = get_field(get_field(response, "thread"), "path")
    is_enforced = get_field(get_field(response, "activePermissionProfile"), "id") == _PROFILE
    return replace(requested, is_enforced=is_enforced, rollout_path=path if isinstance(path, str) else "")


def command_needs(policy: SandboxPolicy, params: ServerRequestParams, raw_call: RawItem | None) -> tuple[str, ...]:
    """What a command needs; `raw_call` is how the model called it. In doubt it leaves the sandbox."""
    is_unasked = policy.has_rules and policy.approval != UNTRUSTED
    if is_unasked and policy.sandbox == OPEN:
        return ()
    if not policy.is_enforced or params.reason or not _stays_in_sandbox(raw_call):
        return (HOST,)
    return () if is_unasked else (CODEX_SANDBOX,)


def patch_needs(policy: SandboxPolicy, paths: Iterable[str], workspace: str) -> tuple[str, ...]:
    """What a patch needs. Codex applies an allowed patch outside of its sandbox."""
    is_unasked = policy.has_rules and policy.approval != UNTRUSTED
    if is_unasked and policy.sandbox == OPEN:
        return ()
    is_free = is_unasked and policy.sandbox == "workspace-write"
    return tuple(f"write:{path}" for path in paths if not (is_free and _is_within(path, workspace)))


def _has_rules(rules: Iterable[Rule], workspace: str) -> bool:
    return any(
        rule.verdict != "allow"
        and rule.tool in ("*", "shell", "patch")
        and (not rule.workspace or rule.workspace.rstrip("/") == workspace.rstrip("/"))
        for rule in rules
    )


def _stays_in_sandbox(raw_call: RawItem | None) -> bool:
    if raw_call is None or raw_call.name not in _COMMAND_TOOLS:
        return False
    args = parse_arguments(raw_call.arguments)
    if not args:
        return False
    escalations = ("additional_permissions", "with_escalated_permissions")
    return not any(map(args.get, escalations)) and args.get("sandbox_permissions") in (None, "use_default")


def _is_within(path: str, workspace: str) -> bool:
    """Whether Codex's sandbox would allow writing this: in the workspace, and not in a protected folder."""
    root = PurePath(os.path.realpath(workspace))
    real = PurePath(os.path.realpath(root / path))
    return real.is_relative_to(root) and not set(PROTECTED_FOLDERS).intersection(real.relative_to(root).parts)
