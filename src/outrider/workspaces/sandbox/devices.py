"""Devices for the sandboxes of real root, who owns the machine's own and could change their permissions from inside."""

import os
import stat
from collections.abc import Sequence
from pathlib import Path

_NOBODY = 65534
"""Not an account that any sandbox runs as, so that from inside nothing about these can be changed."""
_DEVICE_NUMBERS = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}


def make_devices(places: Sequence[Path]) -> tuple[tuple[str, str], ...]:
    """Path inside and source of each, made now in the first of these folders where they work; a normal user needs none.

    Raises OSError where root may not make any.
    """
    if os.geteuid() != 0:
        return ()
    failure = OSError("no folder to make them in")
    for folder in places:
        try:
            return _make_devices_in(folder)
        except OSError as error:
            failure = error
    raise failure


def _make_devices_in(folder: Path) -> tuple[tuple[str, str], ...]:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, (major, minor) in _DEVICE_NUMBERS.items():
        _make_device(folder / name, os.makedev(major, minor))
    os.close(os.open(folder / "null", os.O_WRONLY))  # refused where devices are not heeded
    return tuple((f"/dev/{name}", str(folder / name)) for name in _DEVICE_NUMBERS)


def _make_device(path: Path, device: int) -> None:
    try:
        there = path.lstat()
        if stat.S_ISCHR(there.st_mode) and there.st_rdev == device and there.st_uid == _NOBODY:
            return
        path.unlink()
    except FileNotFoundError:
        pass
    fresh = path.with_suffix(f".{os.getpid()}")
    os.mknod(fresh, stat.S_IFCHR | 0o666, device)
    os.chown(fresh, _NOBODY, _NOBODY)
    os.chmod(fresh, 0o666)
    os.replace(fresh, path)
