"""Matches a pattern against contents, as a process of its own: a pattern that never ends is ended by killing it.

Run as a script. Stdin: a JSON line with the wish, then batches: a JSON line with the lengths of some files, then their
contents. Stdout: one JSON line for the pattern, then one for each file: `[[[line, text], …], how many matched in all]`.
"""

import json
import re
import resource
import sys
from typing import BinaryIO

_CPU = 60
_MEMORY = 2 << 30
_EXCERPT = 300


def serve(source: BinaryIO, sink: BinaryIO) -> None:
    """Answer one file after another until the input ends."""
    wish = json.loads(source.readline())
    pattern = re.escape(wish["pattern"]) if wish["literal"] else wish["pattern"]
    try:
        compiled = re.compile(pattern, re.IGNORECASE if wish["ignore_case"] else 0)
    except (re.error, OverflowError, RecursionError) as error:
        _send(sink, {"wrong": str(error)})
        return
    _send(sink, {"wrong": ""})
    while header := source.readline():
        # The whole batch is taken in before the first answer: so neither side ever waits for the other to read.
        batch = [source.read(length) for length in json.loads(header)]
        for content in batch:
            _send(sink, scan_content(compiled, content, wish["most"]))


def scan_content(pattern: "re.Pattern[str]", content: bytes, most: int) -> tuple[list[tuple[int, str]], int]:
    """The first matching lines of a file, and how many match in all."""
    shown: list[tuple[int, str]] = []
    count = 0
    for number, raw in enumerate(content.removesuffix(b"\n").split(b"\n") if content else (), 1):
        line = raw.rstrip(b"\r").decode("utf-8", "replace")
        match = pattern.search(line)
        if match:
            count += 1
            if len(shown) < most:
                shown.append((number, excerpt(line, match.start())))
    return shown, count


def excerpt(line: str, at: int) -> str:
    """The line, or the stretch of it around this place."""
    if len(line) <= _EXCERPT:
        return line
    start = max(0, min(at - _EXCERPT // 3, len(line) - _EXCERPT))
    end = start + _EXCERPT
    return ("… " if start else "") + line[start:end] + (" …" if end < len(line) else "")


def _send(sink: BinaryIO, answer: object) -> None:
    sink.write(json.dumps(answer).encode() + b"\n")
    sink.flush()


if __name__ == "__main__":
    # Whoever started this may be gone without having ended it.
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU, _CPU))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    serve(sys.stdin.buffer, sys.stdout.buffer)
