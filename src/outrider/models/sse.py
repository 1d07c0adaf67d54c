"""Server-sent events out of a byte stream, whatever its chunks. Pure; the HTTP code feeds it."""

from typing import NamedTuple

_MAX_LINE = 16 * 1024 * 1024
_MAX_STRAY = 4096
_FIELDS = (b":", b"data", b"event", b"id", b"retry")


class SseTooLong(ValueError):
    """One event is longer than anything a model sends."""


class SseEvent(NamedTuple):
    """One dispatched event: its name (empty for the default) and its data lines joined by newlines."""

    name: str
    data: bytes


class SseParser:
    """Feed it bytes, get back the events they complete."""

    def __init__(self, longest: int = _MAX_LINE) -> None:
        self._max_length = longest
        self._buffer = b""
        self._name = ""
        self._data: list[bytes] = []
        self._data_size = 0
        self._first = True
        self.stray = b""
        """The beginning of what was not SSE: a proxy's page, or an error as bare JSON."""

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """The events that this chunk completes. Raises Overlong."""
        whole = self._buffer + chunk
        # A carriage return at the very end may be the first half of a CRLF.
        if whole.endswith(b"\r"):
            whole, held = whole[:-1], b"\r"
        else:
            held = b""
        lines = whole.splitlines()
        unfinished = lines.pop() if lines and not whole.endswith((b"\n", b"\r")) else b""
        self._buffer = unfinished + held
        if len(self._buffer) > self._max_length:
            raise SseTooLong(f"a line of more than {self._max_length} bytes")
        return self._parse_lines(lines)

    def close(self) -> list[SseEvent]:
        """The events that the end of the stream completes; an event without its blank line is dropped."""
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
