"""What was typed before, kept in the home for its owner alone, and bounded."""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec
from prompt_toolkit.history import History

_MAX_HISTORY_BYTES = 1_000_000
_MAX_HISTORY_ENTRIES = 1_000


class InputHistory(History):
    """One JSON string a line, oldest first. A file that cannot be read or written costs the history, not the chat."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def load_history_strings(self) -> Iterable[str]:
        """Newest first."""
        try:
            content = self._path.read_bytes()
        except OSError:
            return []
        lines = content.splitlines()[-_MAX_HISTORY_ENTRIES:]
        if len(content) > _MAX_HISTORY_BYTES:
            self._rewrite(lines)
        texts: list[str] = []
        for line in lines:
            with suppress(msgspec.DecodeError, UnicodeDecodeError):  # A line cut by a crash.
                texts.append(msgspec.json.decode(line, type=str))
        return reversed(texts)

    def store_string(self, string: str) -> None:
        with suppress(OSError), os.fdopen(self._open(os.O_APPEND), "ab") as file:
            file.write(msgspec.json.encode(string.encode(errors="replace").decode()) + b"\n")

    def _rewrite(self, lines: list[bytes]) -> None:
        kept = b"\n".join(lines)[-_MAX_HISTORY_BYTES // 2 :].partition(b"\n")[2]
        with suppress(OSError), os.fdopen(self._open(os.O_TRUNC), "wb") as file:
            file.write(kept + b"\n")

    def _open(self, how: int) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | how, 0o600)
