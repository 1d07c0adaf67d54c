"""A small disk for one test, where the machine allows it."""

import shutil
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(path: Path, size: str) -> Generator[Path]:
    """A tmpfs of this size, unmounted afterwards; skips the test where mounting is not allowed."""
    path.mkdir()
    if not shutil.which("mount") or _mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)):
        pytest.skip("this machine does not allow tests to mount a small disk")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True, timeout=60)


def make_read_only(path: Path) -> None:
    assert _mount("-o", "remount,ro", str(path)) == 0


def _mount(*arguments: str) -> int:
    return subprocess.run(["mount", *arguments], capture_output=True, check=False, timeout=60).returncode
