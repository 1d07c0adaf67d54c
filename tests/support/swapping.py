"""A process that exchanges two names for each other, atomically, as fast as it can."""

import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

_EXCHANGE = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
first, second = map(os.fsencode, sys.argv[1:])
print("ready", flush=True)
while True:
    if libc.renameat2(-100, first, -100, second, 2):
        raise OSError(ctypes.get_errno(), "renameat2")
"""


@contextmanager
def swapping(first: Path, second: Path) -> Generator[None]:
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _EXCHANGE, str(first), str(second)], stdout=subprocess.PIPE
    )
    try:
        assert process.stdout
        assert process.stdout.readline() == b"ready\n"
        yield
        assert process.poll() is None
    finally:
        process.kill()
        process.communicate()
