"""The smaller parts of the store: blobs, threads, search queries, and the columns that repeat the journal."""

import asyncio
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given

from outrider.core.errors import Refused, Unavailable
from outrider.core.events import Body, Entry
from outrider.core.plan import fold
from outrider.store.blobs import FileBlobs
from outrider.store.database import DatabaseThread
from outrider.store.journal import SessionRow, apply_entry
from outrider.store.migrations import MIGRATIONS, load_migrations
from outrider.store.search import excerpt, match_expression
from tests.support.journals import journals

UNCLOSED = """
import asyncio, sys
from pathlib import Path
from typing import get_args
from outrider.store import open_store

async def leave_open():
    opening = open_store(Path(sys.argv[1]))
    store = await opening.__aenter__()
    await store.create("ann", "first", "/")
    print("made")
    return opening, store

loop = asyncio.new_event_loop()
opened = loop.run_until_complete(leave_open())
loop.close()
"""


def test_a_blob_is_named_by_its_hash_and_read_back_whole(tmp_path: Path) -> None:
    blobs = FileBlobs(tmp_path / "blobs")
    content = bytes(range(256)) * 1000
    name = blobs.put(content)
    assert (name, blobs.get(name)) == (sha256(content).hexdigest(), content)


def test_putting_a_blob_again_writes_nothing(tmp_path: Path) -> None:
    blobs = FileBlobs(tmp_path / "blobs")
    path = tmp_path / "blobs" / blobs.put(b"x")[:2]
    before = [(item.name, item.stat().st_ino) for item in path.iterdir()]
    blobs.put(b"x")
    assert [(item.name, item.stat().st_ino) for item in path.iterdir()] == before


def test_a_truncated_blob_is_repaired_by_putting_it_again(tmp_path: Path) -> None:
    blobs = FileBlobs(tmp_path / "blobs")
    name = blobs.put(b"whole")
    (tmp_path / "blobs" / name[:2] / name).write_bytes(b"who")
    assert blobs.get(blobs.put(b"whole")) == b"whole"


@pytest.mark.parametrize("name", ["", "..", "../../lock", "a" * 63, "a" * 64, "A" * 64, "/" * 64, "a" * 64 + "\n"])
def test_a_name_without_a_blob_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(Refused):
        FileBlobs(tmp_path / "blobs").get(name)


@given(journals())
def test_the_columns_of_a_session_agree_with_its_journal(journal: list[Entry]) -> None:
    row = SessionRow()
    for entry in journal:
        row = apply_entry(row, entry.body, entry.at * 1000)
    state = fold(journal)
    columns = (row.head, row.saw, row.newest_input, bool(row.is_open))
    assert columns == (state.head, state.saw, state.newest_input, state.is_open)
    assert row.has_work == (state.is_open or state.has_unseen) == (row.waits_since is not None)


def test_a_new_kind_of_entry_needs_a_new_version_of_the_store() -> None:
    kinds = " ".join(sorted(str(kind.__struct_config__.tag) for kind in get_args(Body)))
    version_7 = "answered asked begun bound changed compacted ended input reply result resumed started"
    assert (load_migrations(MIGRATIONS)[-1].version, kinds) == (7, version_7)


@pytest.mark.anyio
async def test_a_bug_in_an_operation_ends_its_thread_and_fails_every_caller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    died: list[str] = []
    monkeypatch.setattr("threading.excepthook", lambda args: died.append(args.exc_type.__name__))  # pyright: ignore[reportUnknownLambdaType, reportUnknownMemberType, reportUnknownArgumentType]
    thread = DatabaseThread("test")

    def bug() -> None:
        raise LookupError("a bug")

    results = await asyncio.gather(thread.run(bug), thread.run(lambda: 1), return_exceptions=True)
    assert [type(result) for result in results] == [Unavailable, Unavailable]
    with pytest.raises(Unavailable):
        await thread.run(lambda: 1)
    await thread.close()
    assert died == ["LookupError"]


def test_a_process_that_ends_without_closing_its_store_does_not_hang(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", UNCLOSED, str(tmp_path)], check=False, timeout=60, capture_output=True
    )
    assert (ended.returncode, ended.stdout) == (0, b"made\n")


def test_words_become_a_query_that_is_always_valid() -> None:
    assert match_expression('fix "the* roof') == '"fix" * AND "the*" * AND "roof" *'
    assert match_expression("東京 -x ***") == '"東  京" * AND "-x" *'
    assert match_expression("\ud800 \0 ( )") == ""


def test_an_excerpt_of_a_short_text_is_all_of_it() -> None:
    assert excerpt("a  short\ntext", "text") == "a short text"
