"""Finds the commands a request wants run, before the rest is taken apart: a command's words are not the request's."""

import re

from msgspec import Struct

from outrider.models.practice.quotes import CLOSE, OPEN, QUOTED, Quotes

_COURTESY = (
    r"(?:please|pls|now|also|first|next|finally|so|ok|okay|hey|hi|hello|outrider|and|then|just|after\s+that"
    r"|(?P<asks>(?:can|could|would|will)\s+you)|i\s+want\s+you\s+to|i(?:'d|\s+would)\s+like\s+you\s+to"
    r"|i\s+need\s+you\s+to|let'?s|let\s+us|go\s+ahead\s+and|try\s+to)"
)
_BEHIND = r"(?:in\s+(?:the\s+)?background|as\s+a\s+(?:background\s+)?task)"
# Every gap is bounded, so that no text takes long to look through.
_START = re.compile(
    r"(?:^|\n|(?<=[.!?;])\s|[,;.]?\s(?:and\s)?(?:then|after\sthat|afterwards)[,:]?\s|(?P<joint>,?\sand\s|,\s))"
    rf"\s{{0,5}}(?:[-*•]\s|\d{{1,3}}[.)]\s)?(?:{_COURTESY}[\s,:!]{{1,5}}){{0,6}}"
    rf"(?P<before>{_BEHIND}[,:]?\s{{1,5}})?(?:run|execute|(?P<start>start|launch|kick\s+off)|\$)"
    r"(?:\s(?:the\s|this\s)?(?:following\s)?(?:shell\s)?command|\s(?:this|the\sfollowing)(?=:))?:?"
    rf"(?:[ \t]{{1,20}}(?=\S)|\s{{1,20}}(?={OPEN}))"
    r"(?!(?:the|a|an|my|your|our|all|this|some|it|that|them)\b(?![-./=]))",
    re.IGNORECASE,
)
_TELL = r"(?:tell\s+me|let\s+me\s+know|notify\s+me|show\s+me|give\s+me|report(?:\s+back)?)\b"
_VERBS = (
    r"(?:list|read|show|open|display|print|view|write|create|save|append|add|search|find|look|count|replace|change"
    r"|summari[sz]e|tell\s+me|say|run|execute|start|wait|kill|stop|how\s+many|what|where)\b"
)
_END = re.compile(
    rf"[\s,]{{1,3}}(?P<behind>{_BEHIND})(?![\w-])|,?\s(?:and|then)\s{{1,5}}(?={_TELL})|,\s{{1,5}}(?={_TELL})"
    rf"|,\s{{0,5}}(?:and\s+)?then\s|\sand\s{{1,5}}then\s|(?<![;&|)\s])\sthen\s{{1,5}}(?={_VERBS})|\n"
    rf"|(?<=[\w{CLOSE})])[.!?]\s+(?=(?-i:[A-Z]))",
    re.IGNORECASE,
)
_TOLD = re.compile(
    r"[\s,.;]{0,5}(?:and\s+)?(?:then\s+)?(?:(?:when|once|as\s+soon\s+as)\s+it(?:\s+is|\s+has|'s)?\s+\w+,?\s+(?:please\s+)?)?"
    rf"{_TELL}"
    r"(?:\s+(?:(?:when|once|if|whether|as\s+soon|after|about|that|its)\b|(?:what|how)\s+(?:it|happen|came|comes)"
    r"|the\s+(?:result|output|outcome|exit))[^,;.\n]{0,200})?",
    re.IGNORECASE,
)
_COURTESY_AFTER = re.compile(r"(?:,?\s(?:please|pls|for\sme|thanks|thank\syou))[.!?]*$", re.IGNORECASE)
_ONLY = re.compile(rf"({QUOTED})[\s.!?,]*")
_FULL_STOP = re.compile(rf"(?<=[\w{CLOSE}])\.$")


class Command(Struct, frozen=True):
    """A command found in a request."""

    start: int
    end: int
    """Where the request goes on."""
    clause: str
    """In the words of the grammar, with the command hidden."""
    is_joined: bool
    """Whether only an "and" or a comma stands before it, which may as well be part of some text."""


def next_command(masked: str, at: int, quotes: Quotes) -> Command | None:
    """The first command from here on."""
    for match in _START.finditer(masked, at):
        stop = _END.search(masked, match.end())
        end = stop.start() if stop else len(masked)
        command = _trimmed(masked[match.end() : end], is_question=match["asks"] is not None)
        is_behind = match["before"] is not None or match["start"] is not None
        if stop and stop["behind"]:
            is_behind, end = True, stop.end()
        elif match["start"] and not match["before"] and not quotes.is_quoted(command):
            continue  # "start with the tests" names no command
        if not command or _is_half_quoted(command, quotes):
            continue
        hidden = command if quotes.is_quoted(command) else quotes.hide(command)
        told = _TOLD.match(masked, end)
        return Command(
            start=match.start(),
            end=told.end() if told else end,
            clause=f"run {hidden}{' in the background' if is_behind else ''}",
            is_joined=match["joint"] is not None,
        )
    return None


def _trimmed(command: str, *, is_question: bool) -> str:
    """The command without the sentence around it. Its own signs stay: `ls ..`, `echo hi!`."""
    command = command.strip()
    if only := _ONLY.fullmatch(command):
        return only[1]
    shorter = _COURTESY_AFTER.sub("", command)
    if only := _ONLY.fullmatch(shorter):
        return only[1]
    return shorter.rstrip("?") if is_question else _FULL_STOP.sub("", shorter)


def _is_half_quoted(command: str, quotes: Quotes) -> bool:
    """Whether words follow a command in backticks: a shell would take those ticks for its own."""
    first = re.match(QUOTED, command)
    return first is not None and first[0] != command and quotes.outer(first[0]).startswith("`")
