"""What the scripted server is to say: a script in Python or JSON, and the pure choice of the next line.

A script file is an object (or just its list of replies):

    {"replies": [PLACE, …], "rules": [{"when": REGEX, "reply": PLACE} or {"when": REGEX, "replies": [PLACE, …]}, …],
     "faults": [FAULT, …]}

A PLACE is a LINE, or a list of lines: those before the last are met once each, in order; the last one stays.
A LINE is a text, a reply `{"text", "calls", "reasoning", "delay", "chunk", "usage", "cut"}`, or a FAULT. A call is
`{"tool", "args"}`, `{"tool", "raw"}` with arguments sent as written, or `{"tool", "input"}` for a custom tool.
A FAULT is `{"status": 429, "retry_after": 1, "message": "…"}`, `{"stall": "headers"|"stream"}`, `{"cut": BYTES}`,
`{"cut": true}` for half of the events, `{"garbage": true}`, `{"empty": true}` or `{"overflow": true}`.

Which reply is said depends on the request alone: the n-th place answers a request that holds n earlier replies, and a
rule's n-th place one that holds n replies since the person's words it matches. Rules go before replies, `faults` are
met by the first requests, whatever those are. Which faults were met is all that a server remembers.
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
from outrider.models.scripted_reply import ScriptedCall, ScriptedReply
from outrider.testing.scripted_model import SCRIPT_ENDED


class ErrorStatus(Struct, frozen=True):
    """Answer with this HTTP error."""

    status: int
    message: str = ""
    retry_after: float | None = None


class Stall(Struct, frozen=True):
    """Say nothing more, before the headers or in the middle of the stream, until the client goes away."""

    where: Literal["headers", "stream"] = "headers"


class Cut(Struct, frozen=True):
    """Send so many bytes of the reply, or the first half of its events, and drop the connection."""

    bytes: int | None = None


class Garbage(Struct, frozen=True):
    """Answer with what is not JSON."""


class Empty(Struct, frozen=True):
    """A reply without words or calls."""


class Overflow(Struct, frozen=True):
    """This API's own way to say that the prompt does not fit."""


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
    """The next line, and the reply that a cut or stalled stream is the beginning of."""

    line: ScriptLine
    reply: ScriptedReply


def script(*places: ScriptLine | Sequence[ScriptLine] | str) -> Script:
    """A script of these replies, each with the faults before it: `script([Status(500), says("hi")], says("bye"))`."""
    return Script(replies=tuple(_step(place) for place in places))


def _step(place: ScriptLine | Sequence[ScriptLine] | str) -> ScriptStep:
    if isinstance(place, str):
        return (ScriptedReply(place),)
    return tuple(place) if isinstance(place, Sequence) else (place,)


class ScriptProgress:
    """Goes through a script; remembers which faults were met."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self._uses: Counter[str] = Counter()
        self._rules = [re.compile(rule.when, re.IGNORECASE | re.DOTALL) for rule in script.rules]

    def choose(self, prompt: Prompt) -> ChosenLine:
        """What to say to this prompt now."""
        name, place = self._find(prompt)
        reply = place[-1] if isinstance(place[-1], ScriptedReply) else ScriptedReply(SCRIPT_ENDED)
        if (met := self._uses["faults"]) < len(self.script.faults):
            self._uses["faults"] += 1
            return ChosenLine(self.script.faults[met], reply)
        met = min(self._uses[name], len(place) - 1)
        self._uses[name] += 1
        line = place[met]
        return ChosenLine(line, line if isinstance(line, ScriptedReply) else reply)

    def _find(self, prompt: Prompt) -> tuple[str, ScriptStep]:
        for n, (rule, pattern) in enumerate(zip(self.script.rules, self._rules, strict=True)):
            if pattern.search(last_user_text(prompt)):
                step = _count_replies(prompt, since_words=True)
                return f"rule {n} {step}", _nth_step(rule.replies, step)
        position = _count_replies(prompt)
        return f"reply {position}", _nth_step(self.script.replies, position)


def _nth_step(places: Sequence[ScriptStep], n: int) -> ScriptStep:
    return places[n] if n < len(places) else (ScriptedReply(SCRIPT_ENDED),)


def last_user_text(prompt: Prompt) -> str:
    """What the person said last."""
    said = (message.text for message in reversed(prompt.messages) if isinstance(message, UserMessage))
    return next((text for text in said if not text.startswith(SUMMARY)), "")


def _count_replies(prompt: Prompt, *, since_words: bool = False) -> int:
    count = 0
    for message in prompt.messages:
        if isinstance(message, AssistantMessage):
            count += 1
        elif since_words and isinstance(message, UserMessage):
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
    """Read a script file. Raises Refused with what is wrong in it."""
    content = source.encode() if isinstance(source, str) else source
    try:
        if content.lstrip()[:1] == b"[":
            content = b'{"replies":' + content + b"}"
        written = msgspec.json.decode(content, type=_Script)
        faults = tuple(_parse_line(line) for line in written.faults)
        if any(isinstance(fault, ScriptedReply) for fault in faults):
            raise Refused("in the script: `faults` may hold faults only")
        return Script(
            replies=tuple(_parse_step(place) for place in written.replies),
            rules=tuple(_parse_rule(rule) for rule in written.rules),
            faults=tuple(fault for fault in faults if not isinstance(fault, ScriptedReply)),
        )
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refused(f"in the script: {error}") from error


def _parse_rule(rule: _Rule) -> ScriptRule:
    places = rule.replies if rule.reply is None else [rule.reply, *rule.replies]
    if not places:
        raise Refused(f"in the script: the rule for {rule.when!r} has no reply")
    try:
        re.compile(rule.when)
    except re.error as error:
        raise Refused(f"in the script: {rule.when!r} is no regular expression: {error}") from error
    return ScriptRule(rule.when, tuple(_parse_step(place) for place in places))


def _parse_step(place: _Lines) -> ScriptStep:
    lines = place if isinstance(place, list) else [place]
    if not lines:
        raise Refused("in the script: a reply is an empty list")
    return tuple(ScriptedReply(line) if isinstance(line, str) else _parse_line(line) for line in lines)


def _parse_line(line: _Line) -> ScriptLine:
    faults: list[Fault] = []
    if line.status is not None:
        if not 400 <= line.status <= 599:
            raise Refused(f"in the script: {line.status} is no HTTP error")
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
