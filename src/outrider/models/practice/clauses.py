"""Takes a request apart: what comes one after another, and what is only courtesy."""

import re

from outrider.models.practice.commands import next_command
from outrider.models.practice.quotes import Quotes

_MOST_COMMANDS = 40
"""Places in a request that are looked at as a command."""
GAP = re.compile(r"\s{40}")
"""Patterns leave room for white space in many places, and a long gap would be tried in all of them: it is not read."""
_WRITES = r"(?:write|create|make|save|append|add|put|insert|generate)"
_VERBS = (
    r"(?:list|ls|read|show|open|display|print|cat|view|write|create|make|save|append|add|search|find|grep|look|count"
    r"|replace|change|summari[sz]e|sum\s+up|outline|tell\s+me|give\s+me|say|echo|run|execute|wait\s+(?:for|until)|kill|stop|cancel|how\s+many|what|where|rename|delete|move|copy)"
)
_CONTENT = re.compile(rf"\b{_WRITES}\b(?:(?!\bthen\b)[^:;\n]){{0,300}}:(?=\s)", re.IGNORECASE)
_THEN = re.compile(
    r"[\s,;.]*(?:\band\s+)?\b(?:then|after\s+that|afterwards|finally)\b[,:]?\s+"
    r"|\s*;\s*|\s*\n+\s*(?:[-*•]\s+|\d+[.)]\s+)?|(?<=[!?])\s+|(?<=\w)\.\s+(?=[A-Z])",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"(?<=[\w\ue001)])\.\s+(?=[A-Z])")
_AND = re.compile(rf"\s*,?\s+and\s+(?:also\s+)?(?={_VERBS}\b)|\s*,\s+(?={_VERBS}\b)", re.IGNORECASE)
_HAS_CONTENT = re.compile(
    rf"^\W*(?:\w+\s+){{0,4}}?{_WRITES}\b.*\b(?:saying|with|containing|says|contains|reads|holding|to|into|in)\b",
    re.IGNORECASE | re.DOTALL,
)
_INSIDE = re.compile(r"\s*(?:in|inside)\s+(?:the\s+file\s+)?\S+\s*", re.IGNORECASE)
_MARK = re.compile(r"^\s*(?:[-*•]|\d+[.)])\s+")
_EMPTY = re.compile(r"(?:tell|show)\s+me|let\s+me\s+know|report(?:\s+back)?|please|thanks|thank\s+you", re.IGNORECASE)
_BEFORE = re.compile(
    r"^(?:please|pls|kindly|now|also|first|next|finally|so|ok|okay|well|hey|hi|hello|outrider|and|then|just|alright|great"
    r"|(?:can|could|would|will)\s+(?:you|u)|(?:can|could|may)\s+i|i\s+want\s+(?:you\s+)?to|i(?:'d|\s+would)\s+like\s+(?:you\s+)?to"
    r"|i\s+need\s+(?:you\s+)?to|i\s+want|let'?s|let\s+(?:us|me)|go\s+ahead\s+and|try\s+to|help\s+me(?:\s+to)?|do\s+you\s+know|tell\s+me|show\s+me(?=\s+(?:what|how|where|which)\b))"
    r"(?:[,:!]+\s*|\s+)(?=\S)",
    re.IGNORECASE,
)
_AFTER = re.compile(
    r"(?:[\s,]+(?:please|pls|for\s+me|thanks|thank\s+you|to\s+me|now|right\s+now|too|as\s+well)|[\s?!,]+|(?<=\S)\.+)$",
    re.IGNORECASE,
)


def clauses(quotes: Quotes) -> list[str]:
    """What the request asks for one after another. All words after a writing clause's colon are its content."""
    head, content = _with_commands_hidden(_MARK.sub("", quotes.masked, count=1), quotes)
    head = "\n".join(line.strip() for line in head.splitlines() if line.strip())
    if GAP.search(head):
        return [head]
    found: list[str] = []
    for part in _THEN.split(head):
        for sentence in _SENTENCE.split(part):
            found += [sentence] if _HAS_CONTENT.search(sentence) else _parted(sentence)
    found = [clause.strip() for clause in found if clause.strip(" \t\n.,!?") and not _EMPTY.fullmatch(clause.strip())]
    if content and found:
        found[-1] += " " + quotes.hide(content)
    return found


def _with_commands_hidden(masked: str, quotes: Quotes) -> tuple[str, str]:
    """What to take apart, each command in it hidden and on a line of its own; and the content of a file after it."""
    head, at, seek = "", 0, 0
    colon = _CONTENT.search(masked)
    for _ in range(_MOST_COMMANDS):
        found = next_command(masked, seek, quotes)
        if found is None or (colon and colon.end() <= found.start + 1):
            break
        if found.is_joined and _is_content(masked[at : found.start]):
            seek = found.start + 1
            continue
        head += f"{masked[at : found.start]}\n{found.clause}"
        at = seek = found.end
        colon = _CONTENT.search(masked, at)
    end = colon.end() if colon else len(masked)
    return head + masked[at:end], masked[end:].strip()


def _is_content(before: str) -> bool:
    """Whether these words end inside a clause that writes."""
    sentence = _SENTENCE.split(_THEN.split(before[-2_000:])[-1])[-1]
    return _HAS_CONTENT.search(sentence) is not None


def _parted(sentence: str) -> list[str]:
    """At each "and" before a verb; "in x, replace …" stays together."""
    parts = _AND.split(sentence)
    if len(parts) > 1 and _INSIDE.fullmatch(parts[0]):
        return [f"{parts[0]}, {parts[1]}", *parts[2:]]
    return parts


def readings(clause: str) -> list[str]:
    """The clause in the ways to try it: with less and less of the courtesy around it.

    What may be the content of a file keeps its last words as long as it can be understood with them.
    """
    without_end, without_start = _stripped(_AFTER, clause), _stripped(_BEFORE, clause)
    polished = _stripped(_AFTER, _stripped(_BEFORE, without_end))
    return [clause, without_start, polished] if _HAS_CONTENT.search(clause) else [without_end, polished]


def _stripped(pattern: re.Pattern[str], clause: str) -> str:
    before = None
    while before != clause:
        before, clause = clause, pattern.sub("", clause, count=1).strip()
    return clause
