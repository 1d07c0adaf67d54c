"""The file tools, as a model uses them: on a real folder, by name and arguments."""

import os
import resource
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outrider.core.errors import Refused
from outrider.core.events import Result
from outrider.core.ports import ToolContext
from outrider.core.store_port import Session
from outrider.core.types import Call, Image
from outrider.tools.define import DefinedTool
from outrider.tools.files import edit, list_folder, read, write
from outrider.tools.text_files import TextFile, is_already_replaced, parse_text, render_text, replace_passage
from outrider.workspaces.local import LocalWorkspace, open_local

pytestmark = pytest.mark.anyio

SESSION = Session("s1", "me", "main", "", "", 0, 0, 0, False, False)
PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)


class MemoryBlobs:
    """Blobs in memory."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}

    def put(self, content: bytes) -> str:
        name = f"blob{len(self.blobs)}"
        self.blobs[name] = content
        return name

    def get(self, name: str) -> bytes:
        if name not in self.blobs:
            raise Refused(f"no blob {name}")
        return self.blobs[name]


@pytest.fixture
def blobs() -> MemoryBlobs:
    return MemoryBlobs()


@pytest.fixture
def context(tmp_path: Path, blobs: MemoryBlobs) -> ToolContext:
    return ToolContext(SESSION, open_local(tmp_path), blobs)


async def call(tool: DefinedTool, context: ToolContext, **args: object) -> Result:
    return await tool.run(Call("c1", tool.spec.name, args), context)


async def test_a_file_is_read_with_a_header_that_says_which_lines_these_are(
    context: ToolContext, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\nthree\n")
    assert await call(read, context, path="a.txt") == Result(
        "c1", "a.txt: lines 1–3 of 3\none\ntwo\nthree", details="3 lines"
    )


async def test_a_part_of_a_file_says_how_to_continue(context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\nthree\nfour")
    assert await call(read, context, path="a.txt", offset="2", limit=2) == Result(
        "c1", "a.txt: lines 2–3 of 4\ntwo\nthree\n[… continue with offset=4 …]", details="2 lines"
    )


async def test_an_offset_past_the_end_fails_with_the_number_of_lines(context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo")
    assert await call(read, context, path="a.txt", offset=9) == Result(
        "c1", "a.txt has 2 lines; there is no line 9", failed=True
    )


async def test_an_empty_file_is_said_to_be_empty(context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "a.txt").touch()
    assert await call(read, context, path="a.txt") == Result("c1", "a.txt is empty", details="empty")


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"a\r\nb\r\n", "a.txt: lines 1–2 of 2, CRLF line ends\na\nb"),
        (b"\xef\xbb\xbfhi\n", "a.txt: lines 1–1 of 1\nhi"),
        (b"caf\xe9\n", "a.txt: lines 1–1 of 1, not UTF-8, read as Latin-1\ncafé"),
        ("\ufeffhé\nho\n".encode("utf-16-le"), "a.txt: lines 1–2 of 2, UTF-16-LE\nhé\nho"),
        ("\ufeffhé\n".encode("utf-16-be"), "a.txt: lines 1–1 of 1, UTF-16-BE\nhé"),
    ],
)
async def test_unusual_encodings_and_line_ends_are_read_and_said_aloud(
    context: ToolContext, tmp_path: Path, raw: bytes, text: str
) -> None:
    (tmp_path / "a.txt").write_bytes(raw)
    assert (await call(read, context, path="a.txt")).text == text


async def test_an_image_is_returned_as_an_image(context: ToolContext, tmp_path: Path, blobs: MemoryBlobs) -> None:
    (tmp_path / "a.png").write_bytes(PNG)
    assert await call(read, context, path="a.png") == Result(
        "c1", "a.png: image/png, 28 bytes", images=(Image("blob0", "image/png"),), details="image/png, 28 bytes"
    )
    assert blobs.blobs == {"blob0": PNG}


async def test_an_image_that_is_too_large_is_refused(context: ToolContext, tmp_path: Path) -> None:
    with (tmp_path / "a.png").open("wb") as file:
        file.write(PNG)
        file.truncate(6 << 20)
    assert await call(read, context, path="a.png") == Result(
        "c1", "a.png is an image (image/png) larger than 5.0 MiB; make a smaller copy and read that", failed=True
    )


@pytest.mark.parametrize(
    ("raw", "about"),
    [(b"PK\x03\x04rest", "a zip archive (or an office document, a jar, a wheel)"), (b"a\0b", "binary")],
)
async def test_binary_files_are_described_not_dumped(
    context: ToolContext, tmp_path: Path, raw: bytes, about: str
) -> None:
    (tmp_path / "x").write_bytes(raw)
    length = f"{len(raw)} bytes"
    assert await call(read, context, path="x") == Result(
        "c1", f"x is not text: {about}, {length}", details=f"{about}, {length}"
    )


async def test_a_very_long_line_is_cut_with_a_note_and_the_next_line_follows(
    context: ToolContext, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("é" * 10_000 + "\nnext\n")
    assert (await call(read, context, path="a.txt")).text == (
        "a.txt: lines 1–2 of 2\n" + "é" * 4_000 + " [… 12,001 more bytes in this line]\nnext"
    )


async def test_a_page_of_a_long_file_stays_within_bounds_and_pages_join_to_the_whole(
    context: ToolContext, tmp_path: Path
) -> None:
    lines = [f"{number} " + "x" * (number % 700) for number in range(1, 401)]
    (tmp_path / "a.txt").write_text("\n".join(lines) + "\n")
    got: list[str] = []
    while len(got) < len(lines):
        text = (await call(read, context, path="a.txt", offset=len(got) + 1)).text
        assert len(text) <= 30_000
        got += [line for line in text.split("\n")[1:] if not line.startswith("[…")]
    assert got == lines


async def test_a_part_of_a_huge_file_is_read_without_loading_it(context: ToolContext, tmp_path: Path) -> None:
    with (tmp_path / "huge.log").open("wb") as file:
        file.write(b"first\nsecond\n")
        file.truncate(20 << 30)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    got = await call(read, context, path="huge.log", limit=1)
    assert got.text == "huge.log is not text: binary, 20480.0 MiB"
    (tmp_path / "rows.log").write_bytes(b"row\n" * (20 << 20))
    got = await call(read, context, path="rows.log", offset=20_000_000, limit=2)
    assert got.text == "rows.log: lines 20000000–20000001 of 20,971,520\nrow\nrow\n[… continue with offset=20000002 …]"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 150_000
    whole = await call(edit, context, path="rows.log", old="x", new="y")
    assert whole == Result("c1", "rows.log is longer than 50 MiB; read it in parts with offset and limit", failed=True)


async def test_a_missing_file_is_reported_with_a_similar_name(context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "README.md").touch()
    (tmp_path / "src").mkdir()
    (tmp_path / "src/main.py").touch()
    texts = [(await call(read, context, path=path)).text for path in ("readme.md", "src/man.py", "scr/main.py", "zzz")]
    assert texts == [
        "no file called readme.md; did you mean README.md?",
        "no file called src/man.py; did you mean src/main.py?",
        "no folder called scr; did you mean src?",
        "no file called zzz",
    ]


async def test_writing_makes_folders_and_says_how_much(context: ToolContext, tmp_path: Path) -> None:
    assert await call(write, context, path="a/b/c.txt", content="hi\nho") == Result(
        "c1", "wrote 5 bytes (2 lines) to a/b/c.txt", details="wrote 5 bytes"
    )
    assert (tmp_path / "a/b/c.txt").read_bytes() == b"hi\nho"


async def test_a_write_cut_short_by_a_crash_is_found_done_or_unknown(context: ToolContext) -> None:
    cut = Call("c1", "write", {"path": "a.txt", "content": "hi"})
    assert await write.reconcile(cut, context) is None
    done = await write.run(cut, context)
    assert await write.reconcile(cut, context) == done
    await call(write, context, path="a.txt", content="other")
    assert await write.reconcile(cut, context) is None


async def test_an_edit_replaces_the_one_passage(context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\ny = 2\n")
    assert await call(edit, context, path="a.py", old="y = 2", new="y = 3") == Result(
        "c1", "edited a.py in 1 place", details="edited 1 place"
    )
    assert (tmp_path / "a.py").read_text() == "x = 1\ny = 3\n"


async def test_an_edit_of_a_passage_that_occurs_twice_says_where_and_all_takes_both(
    context: ToolContext, tmp_path: Path
) -> None:
    (tmp_path / "a.py").write_text("x\ny\nx\n")
    assert (await call(edit, context, path="a.py", old="x", new="z")).text == (
        "old occurs 2 times, at lines 1, 3; include more context to select one of them, or set all"
    )
    assert (await call(edit, context, path="a.py", old="x", new="z", all=True)).text == "edited a.py in 2 places"
    assert (tmp_path / "a.py").read_text() == "z\ny\nz\n"


async def test_an_edit_that_does_not_fit_shows_the_closest_lines(context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def f():\n    return total(1)\n\nprint(f())\n")
    indented = await call(edit, context, path="a.py", old="def f():\n  return total(1)", new="")
    assert indented.text == (
        "old is not in the file; only its white space differs from\n"
        "lines 1–4:\ndef f():\n    return total(1)\n\nprint(f())"
    )
    alike = await call(edit, context, path="a.py", old="return totals(2)", new="")
    assert alike.text == "old is not in the file; the closest is\nlines 2–4:\n    return total(1)\n\nprint(f())"
    strange = await call(edit, context, path="a.py", old="qqqqqqqqqqqqqqqqq", new="")
    assert strange.text == "old is not in the file, nor anything similar; read the file again"


@pytest.mark.parametrize(
    ("raw", "old", "new", "after"),
    [
        (b"a\r\nb\r\nc\r\n", "a\nb", "x\ny\nz", b"x\r\ny\r\nz\r\nc\r\n"),
        (b"a\r\nb\r\n", "a\r\nb", "x\r\ny", b"x\r\ny\r\n"),
        (b"a\nb\n", "a\r\nb", "x\r\ny", b"x\ny\n"),
        (b"a\r\nb\nc\n", "a\nb", "x\ny", b"x\r\ny\nc\n"),
        (b"a\r\nb\nc\n", "b\nc", "x", b"a\r\nx\n"),
        (b"\xef\xbb\xbfa\n", "a", "b", b"\xef\xbb\xbfb\n"),
        (b"caf\xe9 a", "a", "b", b""),
        (b"caf\xe9 x", "x", "\xfc", b"caf\xe9 \xfc"),
        ("\ufeffa\n".encode("utf-16-le"), "a", "ü", "\ufeffü\n".encode("utf-16-le")),
    ],
)
async def test_an_edit_keeps_line_ends_encoding_and_byte_order_mark(
    context: ToolContext, tmp_path: Path, raw: bytes, old: str, new: str, after: bytes
) -> None:
    (tmp_path / "a.txt").write_bytes(raw)
    got = await call(edit, context, path="a.txt", old=old, new=new)
    assert (got.failed, (tmp_path / "a.txt").read_bytes()) == (not after, after or raw)


async def test_an_edit_refuses_characters_the_encoding_has_no_room_for(context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"caf\xe9 x")
    assert (await call(edit, context, path="a.txt", old="x", new="€")).text == (
        "the character € cannot be written in this file's encoding, latin-1"
    )


async def test_an_edit_cut_short_by_a_crash_is_found_done_or_unknown(context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one two")
    cut = Call("c1", "edit", {"path": "a.txt", "old": "two", "new": "two three"})
    assert await edit.reconcile(cut, context) is None
    await edit.run(cut, context)
    assert await edit.reconcile(cut, context) == Result(
        "c1", "a.txt has the new text and no longer the old one", details="edited"
    )


async def test_an_edit_of_a_file_that_changes_in_the_meantime_is_refused(tmp_path: Path) -> None:
    class Busy(LocalWorkspace):
        def read(self, path: str) -> bytes:
            content = super().read(path)
            (tmp_path / path).write_text("theirs one")
            return content

    (tmp_path / "a.txt").write_text("one")
    got = await call(edit, ToolContext(SESSION, Busy(str(tmp_path)), MemoryBlobs()), path="a.txt", old="one", new="two")
    assert got == Result("c1", "a.txt has been changed by another program; read it again", failed=True)
    assert (tmp_path / "a.txt").read_text() == "theirs one"
    assert os.listdir(tmp_path) == ["a.txt"]


passages = st.text(st.sampled_from("ab \n\r\té€"), min_size=1, max_size=12)


@given(st.text(st.sampled_from("ab \n\r\té€"), max_size=40), passages, passages, st.sampled_from(["", "\ufeff"]))
@settings(suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
def test_editing_there_and_back_gives_the_same_bytes(body: str, old: str, new: str, bom: str) -> None:
    raw = (bom + body.replace("\r\n", "\n")).encode()
    try:
        changed, _ = replace_passage(parse_text(raw), old, new, every=False)
        back, _ = replace_passage(parse_text(render_text(changed)), new, old, every=False)
    except Refused:
        return
    if "\r" not in old + new:
        assert render_text(back) == raw


@given(st.binary(max_size=60))
def test_any_bytes_read_as_text_are_written_back_the_same(raw: bytes) -> None:
    assert render_text(parse_text(raw)) == raw


@given(st.text("ab", max_size=12), st.text("ab", min_size=1, max_size=4), st.text("ab", max_size=4))
def test_a_text_before_an_edit_is_never_taken_for_edited_unless_old_is_part_of_new(
    body: str, old: str, new: str
) -> None:
    if body.count(old) == 1 and old not in new:
        assert not is_already_replaced(TextFile(body), old, new)


async def test_a_folder_is_listed_with_sizes_and_skipped_folders_are_only_named(
    context: ToolContext, tmp_path: Path
) -> None:
    (tmp_path / "src/deep/deeper").mkdir(parents=True)
    (tmp_path / "src/a.py").write_text("x" * 2_048)
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/config").touch()
    (tmp_path / "way").symlink_to("src")
    os.mkfifo(tmp_path / "pipe")
    assert await call(list_folder, context, depth=2) == Result(
        "c1",
        ".git/\npipe  (not a regular file)\nsrc/\nsrc/a.py  2.0 KiB\nsrc/deep/\nway  (link)",
        details="6 items",
    )
    assert (await call(list_folder, context, path=".git")).text == ".git/config  0 bytes"
    assert (await call(list_folder, context, path="way")).text == "src/a.py  2.0 KiB\nsrc/deep/"
    assert (await call(list_folder, context, path="src/deep/deeper")).text == "src/deep/deeper is empty"


async def test_a_long_listing_is_cut_and_says_so(context: ToolContext, tmp_path: Path) -> None:
    for number in range(510):
        (tmp_path / f"{number:03}").touch()
    got = await call(list_folder, context)
    assert got.text.split("\n")[499:] == [
        "499  0 bytes",
        "[… 10 more; list a folder below this one, or use search …]",
    ]
