"""Reads a request in plain English into steps. Pure: no word of it is ever acted on here."""

import re

from outrider.models.practice.clauses import GAP, clauses, readings
from outrider.models.practice.grammar import GRAMMAR
from outrider.models.practice.quotes import Quotes
from outrider.models.practice.steps import Puzzled, Running, Step, Talking, Tending
from outrider.models.practice.words import Words

LONGEST = 100_000
"""Characters of a request that is looked at."""
MOST_STEPS = 20
"""Steps that one request may have; one more is read, to tell."""
_LONGEST_CLAUSE = 2_000
# What is to be done only sometimes, or not at all, is not to be done by someone who does not know when.
_CONDITION = re.compile(
    r"\W*(?:but\s+|and\s+|please\s+)*(?:if|unless|when|whenever|once|before|after|until|while|in\s+case|every|don'?t|do\s+not|never)\b",
    re.IGNORECASE,
)


def parse_request(text: str) -> list[Step]:
    """The steps this request asks for, in order; at least one."""
    text = text.strip()
    if len(text) > LONGEST:
        return [Puzzled(text)]
    if text == "?":
        return [Talking("help")]
    quotes = Quotes(text)
    found = clauses(quotes)[: MOST_STEPS + 1]
    steps = [_parse_clause(clause, quotes) for clause in found]
    ifs = [n for n, clause in enumerate(found) if _CONDITION.match(clause) and isinstance(steps[n], Puzzled)]
    if ifs and any(isinstance(step, Running | Tending) for step in steps[ifs[0] :]):
        return [Puzzled(text)]
    asked = [step for step in steps if step != Talking("hello")]
    return asked or steps[:1] or [Puzzled(text)]


def _parse_clause(clause: str, quotes: Quotes) -> Step:
    is_readable = len(clause) <= _LONGEST_CLAUSE and not GAP.search(clause)
    for text in readings(clause) if is_readable else ():
        for pattern, build in GRAMMAR:
            match = pattern.fullmatch(text)
            step = build(Words(match, quotes)) if match else None
            if step is not None:
                return step
    return Puzzled(quotes.show(clause))
