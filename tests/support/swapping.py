"""A process that exchanges two names for each other, atomically, again and again."""

import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

_EXCHANGE = """
import ctypes, os, random, sys
libc = ctypes.CDLL(None, use_errno=True)
first, second = map(os.fsencode, sys.argv[1:3])
most = int(sys.argv[3])
print("ready", flush=True)
while True:
    if libc.renameat2(-100, first, -100, second, 2):
        raise OSError(ctypes.get_errno(), "renameat2")
    for _ in range(random.randint(0, most)):
        pass
"""


@contextmanager
def swapping(first: Path, second: Path, most_idle: int = 0) -> Generator[None]:
    """Exchange them while the context lasts, with up to so many idle rounds in between."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _EXCHANGE, str(first), str(second), str(most_idle)], stdout=subprocess.PIPE
    )
    try:
        assert process.stdout
        assert process.stdout.readline() == b"ready\n"
        yield
        assert process.poll() is None
    finally:
        process.kill()
        process.communicate()
