"""Server-sent events out of a byte stream, whatever its chunks. Pure; the HTTP code feeds it."""

from typing import NamedTuple

_LONGEST_LINE = 16 * 1024 * 1024
_STRAY = 4096
_FIELDS = (b":", b"data", b"event", b"id", b"retry")


class Overlong(ValueError):
    """One event is longer than anything a model sends."""


class Event(NamedTuple):
    """One dispatched event: its name (empty for the default) and its data lines joined by newlines."""

    name: str
    data: bytes


class EventStream:
    """Feed it bytes, get back the events they complete."""

    def __init__(self, longest: int = _LONGEST_LINE) -> None:
        self._longest = longest
        self._rest = b""
        self._name = ""
        self._data: list[bytes] = []
        self._held = 0
        self._first = True
        self.stray = b""
        """The beginning of what was not SSE: a proxy's page, or an error as bare JSON."""

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that this chunk completes. Raises Overlong."""
        whole = self._rest + chunk
        # A carriage return at the very end may be the first half of a CRLF.
        if whole.endswith(b"\r"):
            whole, held = whole[:-1], b"\r"
        else:
            held = b""
        lines = whole.splitlines()
        unfinished = lines.pop() if lines and not whole.endswith((b"\n", b"\r")) else b""
        self._rest = unfinished + held
        if len(self._rest) > self._longest:
            raise Overlong(f"a line of more than {self._longest} bytes")
        return self._take(lines)

    def close(self) -> list[Event]:
        """The events that the end of the stream completes; an event without its blank line is dropped."""
        rest, self._rest = self._rest, b""
        ended = rest.endswith(b"\r")
        lines = rest.splitlines()
        if lines and not ended and not lines[-1].startswith(_FIELDS):
            self._keep_stray(lines[-1])
        return self._take(lines) if ended else []

    def _take(self, lines: list[bytes]) -> list[Event]:
        events: list[Event] = []
        for raw in lines:
            line = raw
            if self._first:
                line, self._first = raw.removeprefix(b"\xef\xbb\xbf"), False
            if not line:
                if self._data:
                    events.append(Event(self._name, b"\n".join(self._data)))
                self._name, self._data, self._held = "", [], 0
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
        self._held += len(data)
        if self._held > self._longest:
            raise Overlong(f"an event of more than {self._longest} bytes")
        self._data.append(data)

    def _keep_stray(self, line: bytes) -> None:
        if len(self.stray) < _STRAY:
            self.stray += line[:_STRAY] + b"\n"
