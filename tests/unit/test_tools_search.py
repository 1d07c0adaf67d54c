"""Searching files: what is found, what is bounded, and what no pattern can do."""

import os
from functools import partial
from pathlib import Path

import anyio
import pytest

from outrider.core.errors import Refused
from outrider.core.events import Result
from outrider.core.ports import ToolContext
from outrider.core.store_port import Session
from outrider.core.types import Call
from outrider.system.processes import process_table
from outrider.system.regex import SearchPattern, check_pattern, match_lines, matches_any_line
from outrider.tools.search import expand_braces, glob_matches, search, search_files
from outrider.workspaces.local import open_local

pytestmark = pytest.mark.anyio

SESSION = Session("s1", "me", "main", "", "", 0, 0, 0, False, False)
ENDLESS = "(a+)+$"
FODDER = "a" * 200 + "b"


class NoBlobs:
    """Blobs that nothing in these tests is long enough for."""

    def put(self, content: bytes) -> str:
        raise Refused("no room")

    def get(self, name: str) -> bytes:
        raise Refused("no room")


@pytest.fixture
def context(tmp_path: Path) -> ToolContext:
    for path, content in {
        "src/a.py": b"import os\nprint(os.name)\n",
        "src/deep/b.py": b"x = 1\r\nimport OS\r\n",
        "notes.txt": "café (os)\n".encode(),
        "blob.bin": b"os\0os",
        ".git/config": b"os",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(content)
    return ToolContext(SESSION, open_local(tmp_path), NoBlobs())


async def run(context: ToolContext, **args: object) -> Result:
    return await search.run(Call("c1", "search", args), context)


async def test_matches_have_path_and_line_and_some_folders_are_skipped(context: ToolContext) -> None:
    assert await run(context, pattern=r"\bos\b") == Result(
        "c1",
        "notes.txt:1: café (os)\nsrc/a.py:1: import os\nsrc/a.py:2: print(os.name)",
        details="3 matches in 2 files",
    )


async def test_case_can_be_ignored_and_a_folder_or_file_named(context: ToolContext) -> None:
    assert (await run(context, pattern="import os$", path="src", ignore_case=True)).text == (
        "src/a.py:1: import os\nsrc/deep/b.py:2: import OS"
    )
    assert (await run(context, pattern="x", path="./src/deep/b.py")).text == "src/deep/b.py:1: x = 1"


async def test_a_glob_narrows_the_files(context: ToolContext) -> None:
    texts = [
        (await run(context, pattern="os", path=path, glob=glob)).text.split(":")[0]
        for path, glob in [(".", "*.txt"), (".", "src/*.py"), ("src", "*.py"), (".", "**/*.{md,txt}"), ("src", "a.*")]
    ]
    assert texts == ["notes.txt", "src/a.py", "src/a.py", "notes.txt", "src/a.py"]


async def test_a_literal_pattern_is_plain_text(context: ToolContext) -> None:
    assert (await run(context, pattern="(os)", literal=True)).details == "1 match in 1 file"


async def test_an_invalid_pattern_fails_with_a_hint(context: ToolContext) -> None:
    assert await run(context, pattern="(os") == Result(
        "c1",
        "not a regular expression: missing ), unterminated subpattern at position 0; "
        "to search for it as plain text, set literal",
        failed=True,
    )


async def test_a_search_without_a_match_says_so(context: ToolContext) -> None:
    assert await run(context, pattern="zzz") == Result("c1", "no match", details="0 matches in 0 files")
    assert (await run(context, pattern="os", glob="*.rs")).text == "no match\n[no file matches the path and glob]"
    assert (await run(context, pattern="os", path="nowhere")).text == "no file called nowhere"
    assert (await run(context, pattern="")).failed


async def test_many_matches_and_long_lines_are_shortened(context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("thread\n" * 300)
    got = await run(context, pattern="thread")
    assert got.text.split("\n")[199:] == [
        "short.txt:200: thread",
        "[only the first 200 matches are shown; use a more specific pattern or search fewer files]",
    ]
    (tmp_path / "many.txt").write_text(("-" * 5_000 + "needle" + "-" * 5_000 + "\n") * 300)
    got = await run(context, pattern="needle")
    rows = got.text.split("\n")
    around = "-" * 100 + "needle" + "-" * 194
    assert rows[0] == f"many.txt:1: … {around} …"
    assert rows[75:] == ["[only the first 75 matches are shown; use a more specific pattern or search fewer files]"]
    assert got.details == "at least 300 matches in 1 file"


async def test_a_file_that_is_too_large_is_reported(context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "large.txt").write_bytes(b"os\n" * (2 << 20))
    assert (await run(context, pattern="os", path="large.txt")).text == "no match\n[1 file larger than 4.0 MiB skipped]"


async def test_a_catastrophic_pattern_ends_in_time(context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "zz.txt").write_text(FODDER)
    with anyio.fail_after(60):
        progress = await search_files(
            context.workspace, SearchPattern(ENDLESS), context.workspace.walk("zz.txt").items, 1.0
        )
    assert (progress.rows, bool(progress.timed_out_in)) == ([], True)


async def test_a_pattern_that_is_expensive_to_compile_ends_in_time(context: ToolContext) -> None:
    with anyio.fail_after(60):
        pattern = SearchPattern("(((((a{1,200}){1,200}){1,200}){1,200}){1,200}b)")
        progress = await search_files(context.workspace, pattern, context.workspace.walk(".").items, 1.0)
    assert progress.rows == []


async def test_a_search_that_is_cancelled_leaves_no_process_behind(context: ToolContext, tmp_path: Path) -> None:
    before = _children()
    (tmp_path / "zz.txt").write_text(FODDER)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(partial(run, context, pattern=ENDLESS))
            while _children() <= before:
                await anyio.sleep(0.01)
            group.cancel_scope.cancel()
    assert _children() <= before


def _children() -> set[int]:
    return {row.pid for row in process_table.list_processes() if row.parent == os.getpid()}


async def test_patterns_for_the_output_of_commands_match_line_by_line() -> None:
    lines = ["ready on 8080", "", "x" * 5_000 + "ready", "not Ready"]
    assert await match_lines(r"^ready", lines) == [0]
    assert await match_lines(r"^$|(?<=not )Ready", lines) == [1, 3]
    assert await matches_any_line("8080$", "\n".join(lines))
    assert not await matches_any_line("^8080", "\n".join(lines))


async def test_a_catastrophic_pattern_does_not_block_the_event_loop() -> None:
    ticks: list[float] = []

    async def tick() -> None:
        while True:
            ticks.append(anyio.current_time())
            await anyio.sleep(0.01)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(tick)
            assert await match_lines(ENDLESS, [FODDER], 0.5) is None
            with pytest.raises(Refused, match="takes too long"):
                await matches_any_line(ENDLESS, FODDER, 0.5)
            group.cancel_scope.cancel()
    assert len(ticks) > 10


async def test_an_invalid_pattern_is_refused_before_it_is_used() -> None:
    await check_pattern(r"(?<!not )ready\b")
    with pytest.raises(Refused, match="not a regular expression: missing"):
        await check_pattern("(ready")
    assert await match_lines("(ready", ["ready"]) is None


@pytest.mark.parametrize(
    ("glob", "path", "is_match"),
    [
        ("*.py", "a/b/c.py", True),
        ("a/*.py", "a/b/c.py", False),
        ("a/**/*.py", "a/b/c.py", True),
        ("a/**/*.py", "a/c.py", True),
        ("**/*.py", "c.py", True),
        ("a/**", "a/b/c.py", True),
        ("b/**", "a/b/c.py", False),
        ("./a/b/*", "a/b/c.py", True),
        ("*.{py,js}", "a.js", True),
        ("{a,b}/{c,d}.py", "b/c.py", True),
        ("*.{py", "a.py", False),
    ],
)
def test_globs_match_as_in_a_shell(glob: str, path: str, is_match: bool) -> None:
    assert glob_matches(path, expand_braces(glob)) is is_match


def test_no_glob_takes_exponential_time() -> None:
    assert len(expand_braces("{a,b}" * 200)) <= 130
    assert not glob_matches("a" * 200 + "/" + "a" * 200, expand_braces("*a" * 60 + "b/" + "**/" * 60 + "*a*a*a*ab"))
