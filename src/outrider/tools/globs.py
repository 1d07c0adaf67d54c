"""Which paths a glob means, in time that no pattern can stretch."""

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

_BRACES = re.compile(r"\{([^{}]*)\}")
_MAX_ALTERNATIVES = 64


def glob_matches(path: str, globs: Sequence[str]) -> bool:
    """Whether one of these globs means this path. One without a slash means names in any folder."""
    parts = path.split("/")
    return any(
        _parts_match(parts, glob.strip("/").split("/")) if "/" in glob else fnmatchcase(parts[-1], glob)
        for glob in globs
    )


def expand_braces(glob: str) -> Sequence[str]:
    """A glob without `{a,b}`: one for each choice, at most some dozens."""
    done: list[str] = []
    todo = [glob.removeprefix("./")]
    while todo and len(done) + len(todo) <= _MAX_ALTERNATIVES:
        current = todo.pop()
        found = _BRACES.search(current)
        if not found:
            done.append(current)
            continue
        todo += [current[: found.start()] + choice + current[found.end() :] for choice in found[1].split(",")]
    return done + todo


def _parts_match(path: Sequence[str], glob: Sequence[str]) -> bool:
    """`**` stands for any number of folders. Keeps the set of places in the path the glob may have come to."""
    places = {0}
    for part in glob:
        if part == "**":
            places = set(range(min(places), len(path) + 1))
        else:
            places = {place + 1 for place in places if place < len(path) and fnmatchcase(path[place], part)}
        if not places:
            return False
    return len(path) in places
