"""A small disk of its own, where the machine lets a test have one."""

import shutil
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(at: Path, size: str) -> Generator[Path]:
    """A tmpfs of this size, gone afterwards; skips the test where mounting is not allowed."""
    at.mkdir()
    if not shutil.which("mount") or _mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(at)):
        pytest.skip("this machine does not let a test mount a small disk")
    try:
        yield at
    finally:
        subprocess.run(["umount", "--lazy", str(at)], check=True, timeout=20)


def make_read_only(at: Path) -> None:
    assert _mount("-o", "remount,ro", str(at)) == 0


def _mount(*arguments: str) -> int:
    return subprocess.run(["mount", *arguments], capture_output=True, check=False, timeout=20).returncode
