"""The built-in tool that searches files. The matching is done by a process of its own, which can be killed.

Which paths a glob means, in time that no pattern can stretch.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import partial
from typing import IO, cast

from anyio import CancelScope, create_task_group, sleep
from anyio.lowlevel import checkpoint_if_cancelled
from msgspec import Struct

from outrider.core.errors import Refused
from outrider.core.events import Result
from outrider.core.ports import ToolContext, Workspace, WorkspaceItem
from outrider.core.text import plural, size
from outrider.core.types import Replay
from outrider.system import regex_worker
from outrider.tools.define import in_thread, result, tool

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


TIMEOUT = 20.0
_MAX_MATCHES = 200
"""Matches shown."""
_MAX_CHARS = 24_000
"""Characters of matches shown."""
_MAX_FILE_SIZE = 4 * 1024 * 1024
_SNIFFED = 8_192
_BATCH = 32


class SearchPattern(Struct, frozen=True):
    """What to look for."""

    pattern: str
    literal: bool = False
    ignore_case: bool = False


class SearchProgress(Struct):
    """What a search came to so far."""

    rows: list[str] = []
    files: int = 0
    matches: int = 0
    too_large: int = 0
    unreadable: int = 0
    timed_out_in: str = ""
    """The file in which the matching was ended for taking too long."""
    pattern_error: str = ""
    """Why nothing could be searched for."""
    truncated: bool = False
    """There is more than can be shown."""


@tool(replay=Replay.SAFE)
async def search(
    context: ToolContext,
    pattern: str,
    path: str = ".",
    glob: str = "",
    literal: bool = False,
    ignore_case: bool = False,
) -> Result:
    """Search the contents of files, line by line. Answers with `path:line: text`.

    pattern: a regular expression (Python's), or plain text with literal
    path: a folder or file to search in, from the workspace's root
    glob: only files like this, e.g. `*.py`, `src/**/*.ts`, `*.{c,h}`
    literal: take the pattern as plain text
    ignore_case: let upper and lower case match each other
    """
    if not pattern:
        raise Refused("the pattern is empty; use list to see which files there are")
    listing = await in_thread(partial(context.workspace.walk, path))
    globs = expand_braces(glob)
    files = [item for item in listing.items if not glob or _matches_globs(item.path, path, globs)]
    sweep = await search_files(context.workspace, SearchPattern(pattern, literal, ignore_case), files, TIMEOUT)
    return _render_result(sweep, len(files), listing.cut)


async def search_files(
    workspace: Workspace, pattern: SearchPattern, files: Sequence[WorkspaceItem], seconds: float
) -> SearchProgress:
    """Search these files for at most this long. Raises Refused for a pattern that is none."""
    sweep, started = SearchProgress(), list["subprocess.Popen[bytes]"]()
    with CancelScope(shield=True):  # else a process could be started and then forgotten
        started.append(await in_thread(_start_worker))
    (matcher,) = started
    try:
        async with create_task_group() as group:
            group.start_soon(_kill_after, matcher, seconds)
            await in_thread(partial(_feed_worker, matcher, workspace, pattern, files, sweep))
            group.cancel_scope.cancel()
    finally:
        _stop_worker(matcher)
    await checkpoint_if_cancelled()  # the thread ends quietly when its matcher is killed
    if sweep.pattern_error:
        raise Refused(sweep.pattern_error)
    return sweep


async def _kill_after(matcher: "subprocess.Popen[bytes]", seconds: float) -> None:
    """Also when cancelled: the thread that waits for the matcher's answer is let go by its death."""
    try:
        await sleep(seconds)
    finally:
        matcher.kill()


def _start_worker() -> "subprocess.Popen[bytes]":
    script = regex_worker.__file__
    pipe = subprocess.PIPE
    command = [sys.executable, "-I", "-S", script]
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env={}, cwd="/")


def _stop_worker(matcher: "subprocess.Popen[bytes]") -> None:
    matcher.kill()
    for stream in (matcher.stdin, matcher.stdout):
        with suppress(BrokenPipeError):
            cast("IO[bytes]", stream).close()
    matcher.wait()


def _feed_worker(
    matcher: "subprocess.Popen[bytes]",
    workspace: Workspace,
    pattern: SearchPattern,
    files: Sequence[WorkspaceItem],
    sweep: SearchProgress,
) -> None:
    """Show the matcher one file after another, until it has seen all, found enough, or was killed."""
    into, out = cast("IO[bytes]", matcher.stdin), cast("IO[bytes]", matcher.stdout)
    sweep.timed_out_in = "the pattern itself"
    with suppress(BrokenPipeError):  # killed for taking too long: `stuck` says where
        into.write(json.dumps({**_as_dict(pattern), "most": _MAX_MATCHES}).encode() + b"\n")
        into.flush()
        opening = out.readline()
        if not opening.endswith(b"\n"):
            return
        wrong = json.loads(opening)["wrong"]
        if wrong:
            sweep.pattern_error = f"not a regular expression: {wrong}; to search for the text as it stands, set literal"
            return
        for batch in _batches(workspace, files, sweep):
            into.write(json.dumps([len(content) for _, content in batch]).encode() + b"\n")
            into.write(b"".join(content for _, content in batch))
            into.flush()
            for path, _ in batch:
                sweep.timed_out_in = path
                answer = out.readline()
                if not answer.endswith(b"\n"):
                    return
                _add_matches(sweep, path, json.loads(answer))
            if sweep.truncated:
                break
        sweep.timed_out_in = ""


def _batches(
    workspace: Workspace, files: Sequence[WorkspaceItem], sweep: SearchProgress
) -> Iterator[Sequence[tuple[str, bytes]]]:
    """Paths and contents, some at a time: a pipe's round trip costs more than matching a small file."""
    batch: list[tuple[str, bytes]] = []
    room = _MAX_FILE_SIZE
    for item in files:
        content = _read_content(workspace, item, sweep)
        if content:
            batch.append((item.path, content))
            room -= len(content)
        if len(batch) >= _BATCH or room <= 0:
            yield batch
            batch, room = [], _MAX_FILE_SIZE
    if batch:
        yield batch


def _as_dict(pattern: SearchPattern) -> dict[str, object]:
    return {"pattern": pattern.pattern, "literal": pattern.literal, "ignore_case": pattern.ignore_case}


def _read_content(workspace: Workspace, item: WorkspaceItem, sweep: SearchProgress) -> bytes:
    """The file's bytes, or nothing when it is not for searching."""
    if item.size > _MAX_FILE_SIZE:
        sweep.too_large += 1
        return b""
    try:
        with workspace.open_read(item.path) as file:
            content = file.read(item.size)
    except Refused:
        sweep.unreadable += 1
        return b""
    if b"\0" in content[:_SNIFFED]:
        return b""
    return content


def _add_matches(sweep: SearchProgress, path: str, answer: tuple[list[tuple[int, str]], int]) -> None:
    shown, count = answer
    if not count:
        return
    sweep.files += 1
    sweep.matches += count
    room = _MAX_CHARS - sum(map(len, sweep.rows))
    for line, text in shown:
        row = f"{path}:{line}: {text}"
        room -= len(row)
        if room < 0 or len(sweep.rows) >= _MAX_MATCHES:
            break
        sweep.rows.append(row)
    sweep.truncated = len(sweep.rows) < sweep.matches


def _render_result(sweep: SearchProgress, files: int, cut: bool) -> Result:
    found = f"{plural(sweep.matches, 'match', 'matches')} in {plural(sweep.files, 'file')}"
    notes: list[str] = []
    if sweep.timed_out_in:
        notes.append(f"gave up after {TIMEOUT:.0f} s in {sweep.timed_out_in}: make the pattern simpler, or search less")
    if sweep.truncated:
        notes.append(
            f"only the first {len(sweep.rows)} matches are shown; search for something rarer, or in fewer files"
        )
    if sweep.too_large:
        notes.append(f"{plural(sweep.too_large, 'file')} larger than {size(_MAX_FILE_SIZE)} not searched")
    if sweep.unreadable:
        notes.append(f"{plural(sweep.unreadable, 'file')} could not be read")
    if cut:
        notes.append("too many files: not all of them were searched; search a folder further down")
    if not files:
        notes.append("there is no file like that to search in")
    found = f"at least {found}" if sweep.truncated or sweep.timed_out_in else found
    lines = [*(sweep.rows or ["no match"]), *(f"[{note}]" for note in notes)]
    return result("\n".join(lines), found, failed=bool(sweep.timed_out_in) and not sweep.rows)


def _matches_globs(path: str, folder: str, globs: Sequence[str]) -> bool:
    """Globs are taken from the workspace's root or from the folder that is searched."""
    inner = path.removeprefix(folder.removeprefix("./").rstrip("/") + "/")
    return glob_matches(path, globs) or glob_matches(inner, globs)
