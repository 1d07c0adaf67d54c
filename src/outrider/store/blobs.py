"""Long contents as files named by their hash. A file that exists is complete."""

import re
from hashlib import sha256
from pathlib import Path

from outrider.core.errors import Refused
from outrider.system.files import explain_os_error, fsync_folder, write_atomic

_NAME = re.compile(r"[0-9a-f]{64}")


class FileBlobs:
    """Implements `core.store_port.Blobs` in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, content: bytes) -> str:
        name = sha256(content).hexdigest()
        path = self._path(name)
        if path.exists() and path.stat().st_size == len(content):
            return name
        try:
            self._write(path, content)
        except OSError as error:
            raise explain_os_error(error, self._folder.parent) from error
        return name

    def get(self, name: str) -> bytes:
        if not _NAME.fullmatch(name):
            raise Refused(f"{name[:80]!r} is not the name of stored content")
        try:
            return self._path(name).read_bytes()
        except FileNotFoundError:
            raise Refused(f"the stored content {name} is missing") from None
        except OSError as error:
            raise explain_os_error(error, self._folder.parent) from error

    def problems(self) -> list[str]:
        """One line for each content that does not match its name."""
        return [
            f"the stored content {path.name} is damaged"
            for path in sorted(self._folder.glob("??/*"))
            if _NAME.fullmatch(path.name) and sha256(path.read_bytes()).hexdigest() != path.name
        ]

    def _path(self, name: str) -> Path:
        return self._folder / name[:2] / name

    def _write(self, path: Path, content: bytes) -> None:
        if not path.parent.exists():
            self._folder.mkdir(mode=0o700, exist_ok=True)
            path.parent.mkdir(mode=0o700, exist_ok=True)
            fsync_folder(self._folder)
        write_atomic(path, content)
