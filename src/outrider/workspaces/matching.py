"""Finds a model's regular expression in what a command wrote, in a process of its own.

A pattern that never comes to an end would hold up everything else in this one.
"""

import subprocess
import sys
from collections.abc import Sequence

import anyio
import msgspec

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
