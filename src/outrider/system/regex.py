"""Finds a model's regular expression in what a command wrote, in a process of its own.

A pattern that never comes to an end would hold up everything else in this one.
"""

import subprocess
import sys
from collections.abc import Sequence

import anyio
import msgspec

from outrider.core.errors import Refused
from outrider.core.text import clip
from outrider.system import regex_worker

_MAX_LINE = 2_000
"""Characters of one line that are looked at."""
_TIMEOUT = 5.0
_SCRIPT = """
import json, re, resource, sys
resource.setrlimit(resource.RLIMIT_CPU, (5, 5))
pattern, lines = json.load(sys.stdin)
search = re.compile(pattern).search
json.dump([number for number, line in enumerate(lines) if search(line)], sys.stdout)
"""


async def match_lines(pattern: str, lines: Sequence[str]) -> Sequence[int] | None:
    """The numbers of the lines that match; None when that takes too long to find out."""
    wish = msgspec.json.encode((pattern, [line[:_MAX_LINE] for line in lines]))
    with anyio.move_on_after(_TIMEOUT):
        done = await anyio.run_process(
            [sys.executable, "-I", "-S", "-c", _SCRIPT], input=wish, stderr=subprocess.DEVNULL, env={}, check=False
        )
        return msgspec.json.decode(done.stdout, type=list[int]) if done.returncode == 0 else None
    return None


_MATCH_TIMEOUT = 5.0


async def matches_any_line(pattern: str, text: str) -> bool:
    """Whether a line matches. Found out by another process: a pattern that never comes to an end is ended with it."""
    wish = {"pattern": pattern, "literal": False, "ignore_case": False, "most": 1}
    content = text.encode("utf-8", "replace")
    asked = b"%s\n[%d]\n%s" % (msgspec.json.encode(wish), len(content), content)
    with anyio.move_on_after(_MATCH_TIMEOUT):
        done = await anyio.run_process(
            [sys.executable, "-I", "-S", regex_worker.__file__],
            input=asked,
            stderr=subprocess.DEVNULL,
            env={},
            check=False,
        )
        answers = done.stdout.splitlines()
        if len(answers) == 2:
            return msgspec.json.decode(answers[1], type=tuple[object, int])[1] > 0
    raise Refused(f"finding {clip(pattern, 80)!r} in the output takes too long; name it in a simpler way")
