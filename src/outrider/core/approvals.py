"""Approvals: may this call run? Rules and permissions are data, and no pattern over shell text decides."""

import shlex
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from outrider.core.text import replace_unprintable

Verdict = Literal["allow", "ask", "deny"]
PermissionScope = Literal["once", "session", "workspace"]
ONCE, SESSION, WORKSPACE, NO = "once", "session", "workspace", "no"
ANSWERS = (ONCE, SESSION, WORKSPACE, NO)
"""The answers to an approval: how far a yes applies, or no."""
HOST = "host"
"""The need to run outside any sandbox, as the user who runs Outrider."""
NETWORK = "network"


class ApprovalRequest(Struct, frozen=True):
    """What one call needs beyond what every call may do. What is approved is exactly what runs."""

    tool: str
    command: str
    """What would run, as people read it."""
    needs: tuple[str, ...]
    """`network`, `read:PATH`, `write:PATH`, or `host`."""
    workspace: str
    why: str = ""
    """The model's reason."""


class Rule(Struct, frozen=True, forbid_unknown_fields=True):
    """A decision the person made in advance, in config.toml."""

    verdict: Verdict
    tool: str = "*"
    argv: tuple[str, ...] = ()
    """The first words of a simple command, e.g. `["git", "push"]`. A command with shell syntax never matches."""
    workspace: str = ""
    """Only in this folder."""
    needs: tuple[str, ...] = ()
    """What an `allow` covers; empty covers only what stays in the sandbox."""


class Permission(Struct, frozen=True):
    """A yes that applies to more than one call. It can be listed, and revoked at any time."""

    id: str
    person: str
    scope: PermissionScope
    applies_to: str
    """The session's id, or the workspace's folder."""
    need: str
    created: int


class AccessDecision(Struct, frozen=True):
    """May a call run?"""

    verdict: Verdict
    reason: str = ""
    """Why it is denied, for the model and for people."""


def decide_access(request: ApprovalRequest, rules: Sequence[Rule], granted: frozenset[str]) -> AccessDecision:
    """The decision on a call: a matching deny wins, then permissions and matching allows; else ask."""
    matching = [(number, rule) for number, rule in enumerate(rules, 1) if _matches(rule, request)]
    for number, rule in matching:
        if rule.verdict == "deny":
            return AccessDecision("deny", f"a rule denies it (rule {number}: {render_rule(rule)})")
    if any(rule.verdict == "ask" for _, rule in matching):
        open_needs = [need for need in request.needs if need not in granted]
        return AccessDecision("ask" if open_needs or not request.needs else "allow")
    covered = granted.union(*(rule.needs for _, rule in matching))
    return AccessDecision("allow" if all(need in covered for need in request.needs) else "ask")


def decision_of_answer(answer: str, *, is_by_person: bool) -> AccessDecision:
    """The decision on a call that a question was about."""
    if answer != NO:
        return AccessDecision("allow")
    nobody = "it needs approval, and nobody was there to give it"
    return AccessDecision("deny", "the person did not allow it" if is_by_person else nobody)


def render_rule(rule: Rule) -> str:
    """A rule in one line, for example `deny shell: git push …`."""
    command = f": {' '.join(rule.argv)} …" if rule.argv else ""
    workspace = f", in {rule.workspace}" if rule.workspace else ""
    needs = f", with {', '.join(rule.needs)}" if rule.needs else ""
    return f"{rule.verdict} {'every tool' if rule.tool == '*' else rule.tool}{command}{workspace}{needs}"


def _matches(rule: Rule, request: ApprovalRequest) -> bool:
    if rule.tool not in ("*", request.tool):
        return False
    if rule.workspace and rule.workspace.rstrip("/") != request.workspace.rstrip("/"):
        return False
    if not rule.argv:
        return True
    words = simple_argv(request.command)
    return words is not None and words[: len(rule.argv)] == rule.argv


_SYNTAX = frozenset("|&;<>()$`\\\"'*?[]{}~#!=\n\r\t")


def simple_argv(command: str) -> tuple[str, ...] | None:
    """The words of a command without any shell syntax; None for any other."""
    if any(character in _SYNTAX for character in command):
        return None
    return tuple(shlex.split(command))


def render_approval(request: ApprovalRequest) -> str:
    """The question to the person. The model's text is quoted line by line, so that it cannot pass for ours."""
    what = _TOOL_NOUNS.get(request.tool, f"{request.tool} call")
    needs = " and ".join(map(_describe_need, request.needs))
    workspace = replace_unprintable(request.workspace)
    lines = [f"Allow this {what} {needs}, in {workspace}?" if needs else f"Allow this {what} in {workspace}?"]
    lines += [f"| {replace_unprintable(line)}" for line in request.command.split("\n")]
    if request.why:
        lines += ["The model's reason:", *(f"| {replace_unprintable(line)}" for line in request.why.split("\n"))]
    return "\n".join(lines)


_TOOL_NOUNS = {"shell": "command", "edit": "edit", "patch": "patch", "write": "file write"}
_NEED_TEXTS = {NETWORK: "with network access", HOST: "without a sandbox", "codex": "in Codex's sandbox"}


def _describe_need(need: str) -> str:
    kind, _, path = need.partition(":")
    return f"with {kind} access to {path}" if path else _NEED_TEXTS.get(need, f"with {need}")
