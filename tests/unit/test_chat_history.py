"""The input history: kept across chats, bounded, and never a reason for the chat to fail."""

import stat
from pathlib import Path

from outrider.cli.chat.terminal import InputHistory


def test_the_history_is_loaded_newest_first(tmp_path: Path) -> None:
    path = tmp_path / "chat_history"
    for text in ("one", "two\nlines", "日本語"):
        InputHistory(path).store_string(text)
    assert list(InputHistory(path).load_history_strings()) == ["日本語", "two\nlines", "one"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_truncated_line_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "chat_history"
    path.write_bytes(b'"one"\n"tw\n\xff\xfe\n"three"\n')
    assert list(InputHistory(path).load_history_strings()) == ["three", "one"]


def test_a_long_history_is_shortened_when_it_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "chat_history"
    path.write_text("".join(f'"{n:04} {"x" * 1000}"\n' for n in range(1_500)))
    entries = list(InputHistory(path).load_history_strings())
    assert (len(entries), entries[0][:4]) == (1_000, "1499")
    assert path.stat().st_size <= 500_100
    assert next(iter(InputHistory(path).load_history_strings()))[:4] == "1499"


def test_a_history_that_cannot_be_written_is_ignored(tmp_path: Path) -> None:
    history = InputHistory(tmp_path / "no such folder" / "chat_history")
    history.store_string("one")
    assert list(history.load_history_strings()) == []
