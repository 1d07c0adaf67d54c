"""Secrets by reference: resolving `env:NAME` and `file:PATH`, and the file permissions they need.

No error raised here contains the value of a secret.
"""

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from outrider.core.errors import Refused


class Secret:
    """A value that is not revealed by `repr`, errors or logs."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __bool__(self) -> bool:
        return bool(self._value)

    def __repr__(self) -> str:
        return "Secret(…)" if self._value else "Secret()"

    __str__ = __repr__


_MAX_SECRET_BYTES = 64_000


def secret_reference(text: str) -> str:
    """The text, if it is a reference (`env:NAME` or `file:PATH`); empty if it is the secret itself."""
    return text if text.startswith(("env:", "file:")) else ""


def resolve_secret(name: str, text: str, environ: Mapping[str, str], config: Path | None = None) -> Secret:
    """The secret itself; empty when it refers to a variable that is not set.

    `config` is the file that the text was read from, if any: a file with a secret must be readable by its owner only.
    """
    kind, _, target = text.partition(":")
    if kind == "env" and secret_reference(text):
        return Secret(environ.get(target.strip(), "").strip())
    if kind == "file" and secret_reference(text):
        return _from_file(name, Path(os.path.expanduser(target.strip())))
    if config is not None and _others_can_read(config):
        raise Refused(
            f"{config}: contains {name}, but other users can read the file; "
            "run chmod 600 on it, or use env:NAME or file:PATH"
        )
    return Secret(text)


def check_reference(name: str, text: str) -> None:
    """Raise Refused for a reference that cannot work, before it is saved."""
    kind, _, target = text.partition(":")
    if kind == "env" and secret_reference(text) and not target.strip().isidentifier():
        raise Refused(f"{name}: env: must be followed by the name of a variable")
    if kind == "file" and secret_reference(text):
        _from_file(name, Path(os.path.expanduser(target.strip())))


def _from_file(name: str, path: Path) -> Secret:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_SECRET_BYTES + 1)
        shared = _others_can_read(path)
    except OSError as error:
        raise Refused(f"{name}: {path} cannot be read: {error.strerror}") from None
    if shared:
        raise Refused(f"{name}: other users can read {path}; run chmod 600 on it")
    if not content.strip() or len(content) > _MAX_SECRET_BYTES:
        raise Refused(f"{name}: {path} is {'too long' if content.strip() else 'empty'}")
    try:
        return Secret(content.decode().strip())
    except UnicodeDecodeError:
        raise Refused(f"{name}: {path} is not text") from None


def _others_can_read(path: Path) -> bool:
    return os.name == "posix" and bool(stat.S_IMODE(path.stat().st_mode) & 0o077)
