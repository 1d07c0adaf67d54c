"""Time-bounded matching of regular expressions that a model wrote.

No pattern can hold up the event loop or use up this process's memory: it is compiled and matched in a process of its
own, which the kernel ends when its time is up, and which ends with a cancelled caller. Neither library that matches in
this process can promise that: `regex` bounds the time of a match but not that of compiling (`a{1000000000}` takes all
memory while it holds the interpreter), and RE2 knows no look-around.
"""

import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import cast

import anyio
import msgspec
from anyio.abc import ByteReceiveStream, ByteSendStream, Process
from msgspec import Struct

from outrider.core.errors import Refused
from outrider.core.text import clip
from outrider.system import regex_worker
from outrider.system.task_groups import background_group

MATCH_TIMEOUT = 5.0
"""Seconds a pattern may take over the output of a command."""
_MAX_LINE = 10_000
"""Characters of one line of output that are matched."""


class SearchPattern(Struct, frozen=True):
    """What to look for."""

    pattern: str
    literal: bool = False
    ignore_case: bool = False


class ContentMatches(Struct, frozen=True, array_like=True):
    """The matching lines of one content."""

    lines: list[tuple[int, str]]
    """The first of them: line number, from 1, and text (the part around the match where the line is long)."""
    count: int
    """How many lines match in all."""


class _PatternCheck(Struct):
    error: str


@asynccontextmanager
async def scan_contents(
    pattern: SearchPattern, batches: AsyncIterable[Sequence[bytes]], seconds: float, max_matches: int = 1
) -> AsyncGenerator[AsyncIterator[ContentMatches]]:
    """Match the lines of these contents, and iterate over the results, one for each content.

    The iterator raises Refused for an invalid pattern, and TimeoutError when the time is up before the last content.
    """
    query = {**msgspec.structs.asdict(pattern), "seconds": seconds, "max_matches": max_matches}
    argv = [sys.executable, "-I", "-S", regex_worker.__file__]
    async with await _open_uncancelled(argv) as worker:
        try:
            async with background_group() as group:
                group.start_soon(_send_contents, worker, msgspec.json.encode(query), batches)
                yield _read_results(worker)
        finally:
            with suppress(ProcessLookupError):
                worker.kill()


async def _open_uncancelled(argv: Sequence[str]) -> Process:
    """Start a process. Cancelled meanwhile, it would be left behind."""
    with anyio.CancelScope(shield=True):
        return await anyio.open_process(argv, stderr=subprocess.DEVNULL, cwd="/", env={})
    raise AssertionError("a shielded scope is not cancelled")


async def _send_contents(worker: Process, query: bytes, batches: AsyncIterable[Sequence[bytes]]) -> None:
    stdin = cast("ByteSendStream", worker.stdin)
    with suppress(anyio.BrokenResourceError):  # it has ended: the end of its output says how
        await stdin.send(query + b"\n")
        async for contents in batches:
            await stdin.send(b"".join(b"%d\n%s" % (len(content), content) for content in contents))
        await stdin.aclose()


async def _read_results(worker: Process) -> AsyncGenerator[ContentMatches]:
    is_compiled, partial_line = False, b""
    async for chunk in cast("ByteReceiveStream", worker.stdout):
        *lines, partial_line = (partial_line + chunk).split(b"\n")
        for line in lines:
            if is_compiled:
                yield msgspec.json.decode(line, type=ContentMatches)
            elif error := msgspec.json.decode(line, type=_PatternCheck).error:
                raise Refused(f"not a regular expression: {error}")
            is_compiled = True
    if await worker.wait():
        raise TimeoutError


async def _scan_text(pattern: str, text: str, seconds: float, max_matches: int = 1) -> ContentMatches:
    async def batches() -> AsyncGenerator[Sequence[bytes]]:
        yield [text.encode("utf-8", "replace")]

    async with scan_contents(SearchPattern(pattern), batches(), seconds, max_matches) as results:
        async for matches in results:
            return matches
    raise TimeoutError


async def match_lines(pattern: str, lines: Sequence[str], seconds: float = MATCH_TIMEOUT) -> Sequence[int] | None:
    """The indexes of the lines that match; None for a pattern that is invalid or takes too long."""
    try:
        text = "".join(f"{line[:_MAX_LINE]}\n" for line in lines)
        matches = await _scan_text(pattern, text, seconds, len(lines))
    except (TimeoutError, Refused):
        return None
    return [number - 1 for number, _ in matches.lines]


async def matches_any_line(pattern: str, text: str, seconds: float = MATCH_TIMEOUT) -> bool:
    """Whether a line of the text matches. Raises Refused for a pattern that is invalid or takes too long."""
    try:
        return (await _scan_text(pattern, text, seconds)).count > 0
    except TimeoutError:
        raise Refused(f"matching {clip(pattern, 80)!r} takes too long; use a simpler pattern") from None


async def check_pattern(pattern: str) -> None:
    """Raises Refused for a pattern that is invalid or takes too long to compile."""
    await matches_any_line(pattern, "")
