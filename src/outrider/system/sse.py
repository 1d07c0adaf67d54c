"""Incremental parser for server-sent events. The boundaries of the chunks do not matter."""

from typing import NamedTuple

_MAX_LINE = 16 * 1024 * 1024
_MAX_STRAY = 4096
_FIELDS = (b":", b"data", b"event", b"id", b"retry")


class SseTooLong(ValueError):
    """An event is longer than allowed."""


class SseEvent(NamedTuple):
    """One dispatched event: its name (empty for the default) and its data lines joined by newlines."""

    name: str
    data: bytes


class SseParser:
    """Turns chunks of bytes into events."""

    def __init__(self, max_length: int = _MAX_LINE) -> None:
        self._max_length = max_length
        self._buffer = b""
        self._name = ""
        self._data: list[bytes] = []
        self._data_size = 0
        self._first = True
        self.stray = b""
        """The first bytes that were not SSE: the page of a proxy, or an error as plain JSON."""

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """The events that this chunk completes. Raises SseTooLong."""
        whole = self._buffer + chunk
        # A carriage return at the very end may be the first half of a CRLF.
        if whole.endswith(b"\r"):
            whole, pending = whole[:-1], b"\r"
        else:
            pending = b""
        lines = whole.splitlines()
        unfinished = lines.pop() if lines and not whole.endswith((b"\n", b"\r")) else b""
        self._buffer = unfinished + pending
        if len(self._buffer) > self._max_length:
            raise SseTooLong(f"a line of more than {self._max_length} bytes")
        return self._parse_lines(lines)

    def close(self) -> list[SseEvent]:
        """The events that the end of the stream completes. An event without its blank line is dropped."""
        rest, self._buffer = self._buffer, b""
        ended = rest.endswith(b"\r")
        lines = rest.splitlines()
        if lines and not ended and not lines[-1].startswith(_FIELDS):
            self._keep_stray(lines[-1])
        return self._parse_lines(lines) if ended else []

    def _parse_lines(self, lines: list[bytes]) -> list[SseEvent]:
        events: list[SseEvent] = []
        for raw in lines:
            line = raw
            if self._first:
                line, self._first = raw.removeprefix(b"\xef\xbb\xbf"), False
            if not line:
                if self._data:
                    events.append(SseEvent(self._name, b"\n".join(self._data)))
                self._name, self._data, self._data_size = "", [], 0
            elif line.startswith(b"data:"):
                self._add(line[6:] if line[5:6] == b" " else line[5:])
            elif line.startswith(b"event:"):
                self._name = line[6:].strip().decode("utf-8", "replace")
            elif line == b"data":
                self._add(b"")
            elif not line.startswith(_FIELDS):
                self._keep_stray(line)
        return events

    def _add(self, data: bytes) -> None:
        self._data_size += len(data)
        if self._data_size > self._max_length:
            raise SseTooLong(f"an event of more than {self._max_length} bytes")
        self._data.append(data)

    def _keep_stray(self, line: bytes) -> None:
        if len(self.stray) < _MAX_STRAY:
            self.stray += line[:_MAX_STRAY] + b"\n"
