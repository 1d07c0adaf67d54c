"""Script of the scripted server, in Python or as a JSON file, and the choice of its next line.

A script file is an object, or only its list of replies:

    {"replies": [STEP, …], "rules": [{"when": REGEX, "reply": STEP} or {"when": REGEX, "replies": [STEP, …]}, …],
     "faults": [FAULT, …]}

A STEP is a LINE or a list of lines. The lines before the last are used once each, in order; the last one is repeated.
A LINE is a text, a reply `{"text", "calls", "reasoning", "delay", "chunk", "usage", "cut"}`, or a FAULT. A call is
`{"tool", "args"}`, `{"tool", "raw"}` with arguments sent unchanged, or `{"tool", "input"}` for a custom tool.
A FAULT is `{"status": 429, "retry_after": 1, "message": "…"}`, `{"stall": "headers"|"stream"}`, `{"cut": BYTES}`,
`{"cut": true}` for half of the events, `{"garbage": true}`, `{"empty": true}` or `{"overflow": true}`.

Which step answers depends on the request alone: the n-th step answers a request with n earlier replies, and the n-th
step of a rule answers a request with n replies since the user message that matches. Rules come before replies. `faults`
answer the first requests, whatever they are. Only the lines that were used are counted by the server.
"""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec import Struct

from outrider.core.errors import Refused
from outrider.core.prompt import SUMMARY, AssistantMessage, Prompt, UserMessage
from outrider.core.types import Usage
from outrider.testing.scripted_model import SCRIPT_ENDED, ScriptedCall, ScriptedReply


class ErrorStatus(Struct, frozen=True):
    """Answer with this HTTP error."""

    status: int
    message: str = ""
    retry_after: float | None = None


class Stall(Struct, frozen=True):
    """Send nothing more, before the headers or half-way through the stream, until released."""

    where: Literal["headers", "stream"] = "headers"


class Cut(Struct, frozen=True):
    """Send this many bytes of the reply, or the first half of its events, and drop the connection."""

    bytes: int | None = None


class Garbage(Struct, frozen=True):
    """Answer with something that is not JSON."""


class Empty(Struct, frozen=True):
    """Answer with neither text nor calls."""


class Overflow(Struct, frozen=True):
    """Answer with the API's own error for a prompt that is too long."""


Fault = ErrorStatus | Stall | Cut | Garbage | Empty | Overflow
ScriptLine = ScriptedReply | Fault
ScriptStep = tuple[ScriptLine, ...]


class ScriptRule(Struct, frozen=True):
    when: str
    replies: tuple[ScriptStep, ...]


class Script(Struct, frozen=True):
    replies: tuple[ScriptStep, ...] = ()
    rules: tuple[ScriptRule, ...] = ()
    faults: tuple[Fault, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.replies or self.rules)


class ChosenLine(Struct, frozen=True):
    """The next line, and the reply that a cut or stalled stream begins with."""

    line: ScriptLine
    reply: ScriptedReply


def script(*steps: ScriptLine | str | Sequence[ScriptLine | str]) -> Script:
    """A script of these replies, each with the faults before it: `script([ErrorStatus(500), "hi"], says("bye"))`."""
    return Script(replies=tuple(_step(step) for step in steps))


def _step(step: ScriptLine | str | Sequence[ScriptLine | str]) -> ScriptStep:
    lines = step if isinstance(step, Sequence) and not isinstance(step, str) else (step,)
    return tuple(ScriptedReply(line) if isinstance(line, str) else line for line in lines)


class ScriptProgress:
    """A script and how often each of its steps was used."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self._uses: Counter[str] = Counter()
        self._rules = [re.compile(rule.when, re.IGNORECASE | re.DOTALL) for rule in script.rules]

    def choose(self, prompt: Prompt) -> ChosenLine:
        """The line that answers this prompt now."""
        name, step = self._find(prompt)
        reply = step[-1] if isinstance(step[-1], ScriptedReply) else ScriptedReply(SCRIPT_ENDED)
        if (uses := self._uses["faults"]) < len(self.script.faults):
            self._uses["faults"] += 1
            return ChosenLine(self.script.faults[uses], reply)
        line = step[min(self._uses[name], len(step) - 1)]
        self._uses[name] += 1
        return ChosenLine(line, line if isinstance(line, ScriptedReply) else reply)

    def _find(self, prompt: Prompt) -> tuple[str, ScriptStep]:
        for n, (rule, pattern) in enumerate(zip(self.script.rules, self._rules, strict=True)):
            if pattern.search(last_user_text(prompt)):
                position = _count_replies(prompt, since_user=True)
                return f"rule {n} {position}", _nth_step(rule.replies, position)
        position = _count_replies(prompt)
        return f"reply {position}", _nth_step(self.script.replies, position)


def _nth_step(steps: Sequence[ScriptStep], n: int) -> ScriptStep:
    return steps[n] if n < len(steps) else (ScriptedReply(SCRIPT_ENDED),)


def last_user_text(prompt: Prompt) -> str:
    """The last message from outside that is not a summary."""
    texts = (message.text for message in reversed(prompt.messages) if isinstance(message, UserMessage))
    return next((text for text in texts if not text.startswith(SUMMARY)), "")


def _count_replies(prompt: Prompt, *, since_user: bool = False) -> int:
    count = 0
    for message in prompt.messages:
        if isinstance(message, AssistantMessage):
            count += 1
        elif since_user and isinstance(message, UserMessage):
            count = 0
    return count


class _Call(Struct, frozen=True, forbid_unknown_fields=True):
    tool: str
    args: dict[str, object] = {}
    raw: str | None = None
    input: str | None = None
    namespace: str = ""


class _Line(Struct, frozen=True, forbid_unknown_fields=True):
    text: str | None = None
    calls: list[_Call] = []
    reasoning: str = ""
    delay: float = 0.0
    chunk: int = 0
    usage: Usage | None = None
    cut: bool | int | str = False
    status: int | None = None
    message: str = ""
    retry_after: float | None = None
    stall: Literal["headers", "stream"] | None = None
    garbage: bool = False
    empty: bool = False
    overflow: bool = False


_Lines = str | _Line | list[str | _Line]


class _Rule(Struct, frozen=True, forbid_unknown_fields=True):
    when: str
    reply: _Lines | None = None
    replies: list[str | _Line | list[str | _Line]] = []


class _Script(Struct, frozen=True, forbid_unknown_fields=True):
    replies: list[str | _Line | list[str | _Line]] = []
    rules: list[_Rule] = []
    faults: list[_Line] = []


def parse_script(source: bytes | str) -> Script:
    """Parse a script file. Raises Refused with the mistake in it."""
    content = source.encode() if isinstance(source, str) else source
    try:
        if content.lstrip()[:1] == b"[":
            content = b'{"replies":' + content + b"}"
        file = msgspec.json.decode(content, type=_Script)
        faults = tuple(_parse_line(line) for line in file.faults)
        if any(isinstance(fault, ScriptedReply) for fault in faults):
            raise Refused("in the script: `faults` may contain only faults")
        return Script(
            replies=tuple(_parse_step(step) for step in file.replies),
            rules=tuple(_parse_rule(rule) for rule in file.rules),
            faults=tuple(fault for fault in faults if not isinstance(fault, ScriptedReply)),
        )
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refused(f"in the script: {error}") from error


def _parse_rule(rule: _Rule) -> ScriptRule:
    steps = rule.replies if rule.reply is None else [rule.reply, *rule.replies]
    if not steps:
        raise Refused(f"in the script: the rule for {rule.when!r} has no reply")
    try:
        re.compile(rule.when)
    except re.error as error:
        raise Refused(f"in the script: {rule.when!r} is not a regular expression: {error}") from error
    return ScriptRule(rule.when, tuple(_parse_step(step) for step in steps))


def _parse_step(step: _Lines) -> ScriptStep:
    lines = step if isinstance(step, list) else [step]
    if not lines:
        raise Refused("in the script: a reply is an empty list")
    return tuple(ScriptedReply(line) if isinstance(line, str) else _parse_line(line) for line in lines)


def _parse_line(line: _Line) -> ScriptLine:
    faults: list[Fault] = []
    if line.status is not None:
        if not 400 <= line.status <= 599:
            raise Refused(f"in the script: {line.status} is not an HTTP error status")
        faults.append(ErrorStatus(line.status, line.message, line.retry_after))
    if line.stall is not None:
        faults.append(Stall(line.stall))
    if line.cut is True:
        faults.append(Cut())
    elif isinstance(line.cut, int) and line.cut is not False:
        faults.append(Cut(line.cut))
    faults += [Garbage()] * line.garbage + [Empty()] * line.empty + [Overflow()] * line.overflow
    if not faults:
        calls = tuple(_parse_call(call) for call in line.calls)
        cut = line.cut if isinstance(line.cut, str) else ""
        return ScriptedReply(line.text or "", calls, line.reasoning, line.usage, cut, line.delay, line.chunk)
    if len(faults) > 1 or line.text is not None or line.calls:
        raise Refused("in the script: a line is either a reply or one fault; put them in a list, faults first")
    return faults[0]


def _parse_call(call: _Call) -> ScriptedCall:
    is_custom = call.input is not None
    return ScriptedCall(call.tool, call.args, call.input if is_custom else call.raw, call.namespace, is_custom)
