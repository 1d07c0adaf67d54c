"""The matching process of `outrider.system.regex`, run as a script: standard library only.

Stdin: a JSON line with the pattern and the limits, then for each content a line with its length and the content.
Stdout: a JSON line for the pattern, then one for each content: `[[[line number, text], …], number of matching lines]`.
"""

import json
import re
import resource
import signal
import sys
from typing import BinaryIO

_MEMORY = 2 << 30
_EXCERPT = 300


def main(source: BinaryIO, sink: BinaryIO) -> None:
    """Answer for one content after another. The kernel ends the process when its time is up."""
    query = json.loads(source.readline())
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, query["seconds"])
    pattern = re.escape(query["pattern"]) if query["literal"] else query["pattern"]
    try:
        compiled = re.compile(pattern, re.IGNORECASE if query["ignore_case"] else 0)
    except (re.error, OverflowError, RecursionError) as error:
        _send(sink, {"error": str(error)})
        return
    _send(sink, {"error": ""})
    while length := source.readline():
        _send(sink, scan_content(compiled, source.read(int(length)), query["max_matches"]))


def scan_content(pattern: "re.Pattern[str]", content: bytes, max_matches: int) -> tuple[list[tuple[int, str]], int]:
    """The first matching lines, and how many match in all."""
    matches: list[tuple[int, str]] = []
    count = 0
    for number, raw in enumerate(content.removesuffix(b"\n").split(b"\n") if content else (), 1):
        line = raw.rstrip(b"\r").decode("utf-8", "replace")
        match = pattern.search(line)
        if match:
            count += 1
            if len(matches) < max_matches:
                matches.append((number, excerpt(line, match.start())))
    return matches, count


def excerpt(line: str, at: int) -> str:
    """The line, or the part of it around this position."""
    if len(line) <= _EXCERPT:
        return line
    start = max(0, min(at - _EXCERPT // 3, len(line) - _EXCERPT))
    end = start + _EXCERPT
    return ("… " if start else "") + line[start:end] + (" …" if end < len(line) else "")


def _send(sink: BinaryIO, answer: object) -> None:
    sink.write(json.dumps(answer).encode() + b"\n")
    sink.flush()


if __name__ == "__main__":
    main(sys.stdin.buffer, sys.stdout.buffer)
