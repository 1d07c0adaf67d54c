"""Programs from npm, unchanged: installed once for all tests, in the versions that their lock file names."""

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CLIENTS = Path(__file__).parents[1] / "clients"


def installed(name: str) -> Path:
    """The folder that `tests/clients/NAME` is installed in. Skips the test where there is no npm, but not in CI."""
    source, folder = CLIENTS / name, Path(sys.prefix) / "clients" / name
    if not (shutil.which("node") and shutil.which("npm")):
        assert not os.environ.get("CI"), "node and npm are needed here"
        pytest.skip("needs node and npm")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wanted, stamp = (source / "package-lock.json").read_text(), folder / "installed.json"
        if not stamp.is_file() or stamp.read_text() != wanted:
            for file in ("package.json", "package-lock.json"):
                shutil.copy(source / file, folder)
            words = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
            ran = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=110, check=False)
            assert ran.returncode == 0, ran.stderr
            stamp.write_text(wanted)
    return folder
