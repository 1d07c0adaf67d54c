"""Tells a command that only sleeps: waiting is what tasks and schedules are for. Pure."""

import re

_SLEEP = re.compile(r"^(?:\S+=\S*\s+)*(?:(?:command|exec|time|nice|nohup|env)\s+)*sleep\s+(.+)$")
_SPAN = re.compile(r"^(\d+(?:\.\d+)?|\.\d+|infinity|inf)([smhd]?)$")
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_PARTS = re.compile(r"&&|\|\||;|\n")


def sleep_seconds(command: str) -> float:
    """How many seconds this command does nothing but sleep; 0 when it does something else after or besides.

    `cd x && sleep 60` only sleeps; a sleep followed by real work does not, nor does one inside a loop or a script.
    """
    total = 0.0
    for part in (part.strip() for part in _PARTS.split(command)):
        if not part or re.match(r"^(cd\b|true$|:$)", part):
            continue
        seconds = _one_sleep(part)
        if not seconds:
            return 0.0
        total += seconds
    return total


def _one_sleep(part: str) -> float:
    found = _SLEEP.match(part)
    if not found:
        return 0.0
    total = 0.0
    for word in found[1].split():
        span = _SPAN.match(word)
        if not span:
            return 0.0
        total += float("inf") if span[1].startswith("inf") else float(span[1]) * _UNITS[span[2]]
    return total
