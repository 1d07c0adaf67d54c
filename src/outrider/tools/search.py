"""The built-in tool `search`, and the globs that narrow it. No pattern and no glob can take for ever."""

import re
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import partial

from outrider.core.errors import Refused
from outrider.core.events import Result
from outrider.core.ports import ToolContext, Workspace, WorkspaceItem
from outrider.core.text import plural, size
from outrider.core.types import Replay
from outrider.system.regex import ContentMatches, SearchPattern, scan_contents
from outrider.tools.define import in_thread, result, tool

_BRACES = re.compile(r"\{([^{}]*)\}")
_MAX_ALTERNATIVES = 64
_MAX_GLOB = 500
"""Characters of a glob."""
_GLOB_TIMEOUT = 5.0
"""Seconds for which globs are compared with paths."""


def glob_matches(path: str, globs: Sequence[str]) -> bool:
    """Whether one of these globs matches the path. A glob without a slash matches names in any folder."""
    parts = path.split("/")
    return any(
        _parts_match(parts, glob.strip("/").split("/")) if "/" in glob else fnmatchcase(parts[-1], glob)
        for glob in globs
    )


def expand_braces(glob: str) -> Sequence[str]:
    """Replace `{a,b}` in a glob: one glob for each choice, up to a few dozen."""
    done: list[str] = []
    todo = [glob.removeprefix("./")]
    while todo and len(done) + len(todo) <= _MAX_ALTERNATIVES:
        current = todo.pop()
        match = _BRACES.search(current)
        if not match:
            done.append(current)
            continue
        todo += [current[: match.start()] + choice + current[match.end() :] for choice in match[1].split(",")]
    return done + todo


def _parts_match(path: Sequence[str], glob: Sequence[str]) -> bool:
    """`**` matches any number of folders. Tracks the set of positions in the path that the glob can have reached."""
    positions = {0}
    for part in glob:
        if part == "**":
            positions = set(range(min(positions), len(path) + 1))
        else:
            positions = {at + 1 for at in positions if at < len(path) and fnmatchcase(path[at], part)}
        if not positions:
            return False
    return len(path) in positions


TIMEOUT = 20.0
_MAX_MATCHES = 200
"""Matching lines in one result."""
_MAX_CHARS = 24_000
"""Characters of matching lines in one result."""
_MAX_FILE_SIZE = 4 * 1024 * 1024
_SNIFFED = 8_192
_BATCH_FILES = 32
_BATCH_SIZE = 1024 * 1024


class SearchProgress:
    """The results of a search so far."""

    def __init__(self) -> None:
        self.rows: list[str] = []
        self.files = 0
        """Files with a match."""
        self.matches = 0
        self.too_large = 0
        self.unreadable = 0
        self.timed_out_in = ""
        """The file in which the time ran out."""

    @property
    def is_truncated(self) -> bool:
        """Whether there are more matches than can be shown."""
        return len(self.rows) < self.matches

    def add_matches(self, path: str, matches: ContentMatches) -> None:
        if not matches.count:
            return
        self.files += 1
        self.matches += matches.count
        remaining = _MAX_CHARS - sum(map(len, self.rows))
        for line, text in matches.lines:
            row = f"{path}:{line}: {text}"
            remaining -= len(row)
            if remaining < 0 or len(self.rows) >= _MAX_MATCHES:
                break
            self.rows.append(row)

    def read_content(self, workspace: Workspace, item: WorkspaceItem) -> bytes:
        """The content of a file; empty, and counted, when it cannot be searched."""
        if item.size > _MAX_FILE_SIZE:
            self.too_large += 1
            return b""
        try:
            with workspace.open_read(item.path) as file:
                content = file.read(item.size)
        except Refused:
            self.unreadable += 1
            return b""
        return b"" if b"\0" in content[:_SNIFFED] else content

    def stop_at(self, path: str) -> None:
        """Record that the time ran out in this file."""
        self.timed_out_in = path


@tool(replay=Replay.SAFE)
async def search(
    context: ToolContext,
    pattern: str,
    path: str = ".",
    glob: str = "",
    literal: bool = False,
    ignore_case: bool = False,
) -> Result:
    """Search the contents of files, line by line. Returns `path:line: text` for each match.

    pattern: a regular expression (Python syntax), or plain text with literal
    path: a folder or file to search in, relative to the workspace
    glob: search only matching files, e.g. `*.py`, `src/**/*.ts`, `*.{c,h}`
    literal: treat the pattern as plain text
    ignore_case: do not distinguish upper and lower case
    """
    if not pattern:
        raise Refused("the pattern is empty; use list to see the files")
    if len(glob) > _MAX_GLOB:
        raise Refused(f"the glob is longer than {_MAX_GLOB} characters")
    listing = await in_thread(partial(context.workspace.walk, path))
    files = await in_thread(partial(_select_files, listing.items, path, glob)) if glob else listing.items
    query = SearchPattern(pattern, literal, ignore_case)
    try:
        progress = await search_files(context.workspace, query, files, TIMEOUT)
    except Refused as error:
        raise Refused(f"{error}; to search for it as plain text, set literal") from None
    return _render_result(progress, len(files), listing.cut)


async def search_files(
    workspace: Workspace, pattern: SearchPattern, files: Sequence[WorkspaceItem], seconds: float
) -> SearchProgress:
    """Search these files for at most this long. Raises Refused for an invalid pattern."""
    progress, paths = SearchProgress(), list[str]()

    async def read_batches() -> AsyncGenerator[Sequence[bytes]]:
        batches = _batches(workspace, files, progress)
        while batch := await in_thread(partial(next, batches, None)):
            paths.extend(path for path, _ in batch)
            yield [content for _, content in batch]

    answered = 0
    async with scan_contents(pattern, read_batches(), seconds, _MAX_MATCHES) as results:
        try:
            async for matches in results:
                progress.add_matches(paths[answered], matches)
                answered += 1
                if progress.is_truncated:
                    break
        except TimeoutError:
            progress.stop_at(paths[answered] if answered < len(paths) else "a file that was still being read")
    return progress


def _batches(
    workspace: Workspace, files: Sequence[WorkspaceItem], progress: SearchProgress
) -> Iterator[Sequence[tuple[str, bytes]]]:
    """Paths and contents, some at a time, since handing over a batch costs more than matching a small file."""
    batch: list[tuple[str, bytes]] = []
    remaining = _BATCH_SIZE
    for item in files:
        content = progress.read_content(workspace, item)
        if content:
            batch.append((item.path, content))
            remaining -= len(content)
        if remaining <= 0 or len(batch) >= _BATCH_FILES:
            yield batch
            batch, remaining = [], _BATCH_SIZE
    if batch:
        yield batch


def _render_result(progress: SearchProgress, files: int, cut: bool) -> Result:
    count = f"{plural(progress.matches, 'match', 'matches')} in {plural(progress.files, 'file')}"
    notes: list[str] = []
    if progress.timed_out_in:
        notes.append(
            f"stopped after {TIMEOUT:.0f} s in {progress.timed_out_in}; use a simpler pattern or search fewer files"
        )
    if progress.is_truncated:
        notes.append(
            f"only the first {len(progress.rows)} matches are shown; use a more specific pattern or search fewer files"
        )
    if progress.too_large:
        notes.append(f"{plural(progress.too_large, 'file')} larger than {size(_MAX_FILE_SIZE)} skipped")
    if progress.unreadable:
        notes.append(f"{plural(progress.unreadable, 'file')} could not be read")
    if cut:
        notes.append("too many files: not all of them were searched; search a folder below this one")
    if not files:
        notes.append("no file matches the path and glob")
    if progress.is_truncated or progress.timed_out_in:
        count = f"at least {count}"
    lines = [*(progress.rows or ["no match"]), *(f"[{note}]" for note in notes)]
    return result("\n".join(lines), count, failed=bool(progress.timed_out_in) and not progress.rows)


def _select_files(items: Sequence[WorkspaceItem], folder: str, glob: str) -> Sequence[WorkspaceItem]:
    """The files that the glob selects. Raises Refused when that takes too long."""
    globs, until, selected = expand_braces(glob), time.monotonic() + _GLOB_TIMEOUT, list[WorkspaceItem]()
    for item in items:
        if time.monotonic() > until:
            raise Refused("comparing the glob with the files takes too long; use a simpler one")
        if _matches_globs(item.path, folder, globs):
            selected.append(item)
    return selected


def _matches_globs(path: str, folder: str, globs: Sequence[str]) -> bool:
    """Globs are relative to the workspace or to the folder that is searched."""
    inner = path.removeprefix(folder.removeprefix("./").rstrip("/") + "/")
    return glob_matches(path, globs) or glob_matches(inner, globs)
