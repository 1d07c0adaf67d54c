"""Approvals: may this call run? Rules and permissions are data, and no pattern over shell text decides."""

import shlex
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Literal

import msgspec
from msgspec import Struct

from outrider.core.text import quote_unusual

Verdict = Literal["allow", "ask", "deny"]
PermissionScope = Literal["once", "session", "workspace"]
ONCE, SESSION, WORKSPACE, NO = "once", "session", "workspace", "no"
ANSWERS = (ONCE, SESSION, WORKSPACE, NO)
"""The answers to an approval: how far a yes applies, or no."""
HOST = "host"
"""The need to run outside any sandbox, as the user who runs Outrider."""
NETWORK = "network"
PATH_ARGUMENTS = ("path", "file_path", "filePath", "abs_path")
"""Arguments that say which file a call changes. A question shows them first."""
_MAX_NAME = 40
_MAX_DETAILS = 4
"""Arguments that get lines of their own in a question. More would not fit on a screen."""


class RequestDetail(Struct, frozen=True):
    """Something besides the command that decides what a call does."""

    label: str
    """The name of an argument; or our own words, which contain a space."""
    text: str = ""


class ApprovalRequest(Struct, frozen=True, omit_defaults=True):
    """What one call would do, and what it needs beyond what every call may do. What is approved is what runs."""

    tool: str
    command: str
    """What would run, whole. Empty for a call that is described by its details."""
    needs: tuple[str, ...]
    """`network`, `read:PATH`, `write:PATH`, `host` or `codex`: a kind, and after a colon what it is limited to."""
    workspace: str
    why: str = ""
    """The model's reason."""
    details: tuple[RequestDetail, ...] = ()
    """Everything else that changes what is done: the folder, stdin, other arguments."""


def argument_details(args: Mapping[str, object]) -> tuple[RequestDetail, ...]:
    """The arguments of a call as details, its path first. Unusual names could pass for our words: then all are JSON."""
    if not all(name.isascii() and name.isidentifier() and len(name) <= _MAX_NAME for name in args):
        return (RequestDetail("arguments", msgspec.json.encode(args).decode()),)
    names = sorted(args, key=lambda name: name not in PATH_ARGUMENTS)
    details = [RequestDetail(name, _argument_text(args[name])) for name in names[:_MAX_DETAILS]]
    if rest := {name: args[name] for name in names[_MAX_DETAILS:]}:
        details.append(RequestDetail("other arguments", msgspec.json.encode(rest).decode()))
    return tuple(details)


def _argument_text(value: object) -> str:
    return value if isinstance(value, str) and value else msgspec.json.encode(value).decode()


def request_digest(request: ApprovalRequest) -> str:
    """The identity of what is asked. The reason is not part of it: it changes nothing that is done."""
    details = [(detail.label, detail.text) for detail in request.details]
    parts = (request.tool, request.command, request.needs, request.workspace, details)
    return sha256(msgspec.json.encode(parts)).hexdigest()


def request_length(request: ApprovalRequest) -> int:
    """The number of characters that a person would have to read."""
    texts = (request.command, request.why, *request.needs, *(detail.text for detail in request.details))
    return sum(map(len, texts))


class Rule(Struct, frozen=True, forbid_unknown_fields=True):
    """A decision the person made in advance, in config.toml."""

    verdict: Verdict
    tool: str = "*"
    argv: tuple[str, ...] = ()
    """The first words of a simple command, e.g. `["git", "push"]`. A command with shell syntax never matches.
    An `allow` matches no call with details either, such as a stdin or another folder."""
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


def render_need(need: str) -> str:
    """A need in one line of a list, its path in quotes when it could pass for another column: `read:'/a b'`."""
    kind, colon, target = need.partition(":")
    return f"{quote_unusual(kind)}{colon}{quote_unusual(target) if target else ''}"


def _matches(rule: Rule, request: ApprovalRequest) -> bool:
    if rule.tool not in ("*", request.tool):
        return False
    if rule.workspace and rule.workspace.rstrip("/") != request.workspace.rstrip("/"):
        return False
    if not rule.argv:
        return True
    if rule.verdict == "allow" and request.details:
        return False  # The words are not all that is run.
    words = simple_argv(request.command)
    return words is not None and words[: len(rule.argv)] == rule.argv


_SYNTAX = frozenset("|&;<>()$`\\\"'*?[]{}~#!=\n\r\t")


def simple_argv(command: str) -> tuple[str, ...] | None:
    """The words of a command without any shell syntax; None for any other."""
    if any(character in _SYNTAX for character in command):
        return None
    return tuple(shlex.split(command))
