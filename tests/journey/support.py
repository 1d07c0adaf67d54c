"""The real `outrider` program in an empty home with a clean environment, as on its first use."""

import fcntl
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct

OUTRIDER = Path(sys.executable).with_name("outrider")
PATIENCE = 60


class Ran(Struct, frozen=True):
    """The exit code and the output of a finished command."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[dict[str, Any]]:
        """JSON lines on stdout, each parsed."""
        return [json.loads(line) for line in self.out.splitlines()]


class Person:
    """A user at a shell: a home folder, a project folder, and environment variables."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "person"
        self.home = self.folder / ".outrider"
        self.project = folder / "project"
        self.environ: dict[str, str] = {
            "PATH": f"{OUTRIDER.parent}{os.pathsep}/usr/bin{os.pathsep}/bin",
            "HOME": str(self.folder),
            "OUTRIDER_HOME": str(self.home),
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "TZ": "UTC",
        }
        self.folder.mkdir()
        self.project.mkdir()

    def uses(self, url: str, model: str = "openai-chat:scripted", **others: str) -> None:
        """Set the model for every command from now on."""
        self.environ |= {"OUTRIDER_MODEL": model, "OUTRIDER_MODEL_URL": url, "OUTRIDER_MODEL_KEY": "k-1234567890"}
        self.environ |= others

    def types(
        self,
        *words: str | bytes,
        stdin: bytes | None = None,
        cwd: Path | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> Ran:
        """Run a command to its end, with this on stdin, which is empty by default."""
        ran = subprocess.run(
            [OUTRIDER, *words],
            cwd=cwd or self.project,
            env={**self.environ, **(environ or {})},
            input=stdin if stdin is not None else b"",
            capture_output=True,
            timeout=PATIENCE,
            check=False,
        )
        return Ran(ran.returncode, ran.stdout.decode(), ran.stderr.decode())

    def begins(self, *words: str, environ: Mapping[str, str] | None = None) -> "subprocess.Popen[bytes]":
        """Start a command and leave it running."""
        return subprocess.Popen(
            [OUTRIDER, *words],
            cwd=self.project,
            env={**self.environ, **(environ or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def pipes(self, script: str) -> Ran:
        """Run a line of shell in the project folder."""
        ran = subprocess.run(
            ["sh", "-c", script],
            cwd=self.project,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PATIENCE,
            check=False,
        )
        return Ran(ran.returncode, ran.stdout.decode(), ran.stderr.decode())

    def types_at_a_terminal(self, *words: str, answers: bytes = b"") -> tuple[int, str]:
        """Run a command with a terminal for stdin, stdout and stderr; returns the exit code and what it printed."""
        main, side = pty.openpty()
        try:
            process = subprocess.Popen(
                [OUTRIDER, *words],
                cwd=self.project,
                env=self.environ,
                stdin=side,
                stdout=side,
                stderr=side,
                start_new_session=True,
            )
        finally:
            os.close(side)
        try:
            os.write(main, answers)
            shown = _read_all(main)
        finally:
            os.close(main)
        return process.wait(PATIENCE), shown


@contextmanager
def owned_home(home: Path) -> Generator[None]:
    """A home that a Python program owns, to which other commands cannot connect."""
    home.mkdir(mode=0o700, exist_ok=True)
    with (home / "lock").open("w") as file:
        file.write(json.dumps({"pid": os.getpid(), "since": "2026-11-15T08:00:00+0000", "what": "Python"}))
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _read_all(descriptor: int) -> str:
    output = bytearray()
    while True:
        try:
            piece = os.read(descriptor, 65_536)
        except OSError:  # On Linux, this means that no process has the other side open any more.
            break
        if not piece:
            break
        output += piece
    return output.decode()


def ended(process: "subprocess.Popen[bytes]") -> Ran:
    """Wait until a command that was started with `begins` has ended."""
    out, err = process.communicate(timeout=PATIENCE)
    return Ran(process.returncode, (out or b"").decode(), err.decode())


def interrupt(process: "subprocess.Popen[bytes]") -> Ran:
    """Press Ctrl-C."""
    process.send_signal(signal.SIGINT)
    return ended(process)


def kinds(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """The types of these JSON lines, without deltas."""
    return [line["type"] for line in lines if line["type"] != "delta"]
