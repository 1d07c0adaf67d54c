"""What the scripted server was asked, kept for tests to look at."""

from collections import deque
from collections.abc import Mapping, Sequence
from threading import Condition
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

_SECRET = frozenset({"authorization", "x-api-key", "api-key", "cookie", "proxy-authorization"})
_LOCAL = frozenset({"127.0.0.1", "localhost", "::1"})


class RecordedRequest(Struct, frozen=True):
    """One request, without what proves who sent it."""

    method: str
    path: str
    body: dict[str, Any]
    headers: dict[str, str]


class RequestLog:
    """The last requests; written by the server's thread, read from any other."""

    def __init__(self, kept: int = 1_000) -> None:
        self._requests: deque[RecordedRequest] = deque(maxlen=kept)
        self._count = 0
        self._changed = Condition()

    def add(self, heard: RecordedRequest) -> None:
        with self._changed:
            self._requests.append(heard)
            self._count += 1
            self._changed.notify_all()

    def all(self) -> Sequence[RecordedRequest]:
        with self._changed:
            return list(self._requests)

    def wait(self, count: int, timeout: float) -> Sequence[RecordedRequest]:
        """All requests, once so many have come. Raises TimeoutError."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._count >= count, timeout):
                raise TimeoutError(f"{self._count} of {count} requests came in {timeout} s")
            return list(self._requests)


def public_headers(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name not in _SECRET}


def is_local(headers: Mapping[str, str]) -> bool:
    """Whether the request names this machine: a page on the web, or a name that was bent to point here, does not."""
    names = [f"//{headers.get('host', '')}", *([headers["origin"]] if "origin" in headers else [])]
    return all(_host(name) in _LOCAL for name in names)


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
