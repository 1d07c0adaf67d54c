"""A real terminal for journeys: a tmux server with its own socket, to type into and to read from."""

import shlex
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

from tests.journey.support import OUTRIDER, Person

WITHIN = 60
"""Seconds after which a wait counts as failed; far more than a loaded machine needs."""


class Terminal:
    """One window with the real program in it. Every wait is bounded; leaving the `with` block ends tmux."""

    def __init__(self, person: Person, *words: str, columns: int = 100, rows: int = 40, **environ: str) -> None:
        self._folder = TemporaryDirectory(prefix="tmux-")  # The path of a socket must be short.
        self._environ = {**person.environ, "TERM": "screen-256color", **environ}
        self._person = person
        self._size = ("-x", str(columns), "-y", str(rows))
        self._words = words
        self._pid, self._code = Path(self._folder.name, "pid"), Path(self._folder.name, "code")

    def __enter__(self) -> Self:
        self._tmux("-f", "/dev/null", *self._start_command())
        return self

    def __exit__(self, *_: object) -> None:
        self._tmux("kill-server")
        self._folder.cleanup()

    def _start_command(self) -> list[str]:
        settings = [f"{name}={value}" for name, value in self._environ.items()]
        program = shlex.join(["env", "-i", *settings, str(OUTRIDER), *self._words])
        inner = f"echo $$ > {shlex.quote(str(self._pid))}; exec {program}"
        outer = f"sh -c {shlex.quote(inner)}; echo $? > {shlex.quote(str(self._code))}; exec sleep 600"
        return ["new-session", "-d", "-s", "chat", *self._size, "-c", str(self._person.project), outer]

    def _tmux(self, *words: str) -> str:
        command = ["tmux", "-S", f"{self._folder.name}/socket", *words]
        return subprocess.run(command, capture_output=True, timeout=WITHIN, check=True, text=True).stdout

    def ask(self, what: str) -> str:
        """A property of the window, e.g. `#{pane_title}`."""
        return self._tmux("display-message", "-p", "-t", "chat", what).strip()

    @property
    def pid(self) -> int:
        return int(self._pid.read_text())

    @property
    def screen(self) -> str:
        """The text of the window and its scrollback; wrapped lines are joined."""
        return self._tmux("capture-pane", "-p", "-J", "-S", "-", "-t", "chat").rstrip()

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self.screen.splitlines()]

    def types(self, text: str) -> None:
        self._tmux("send-keys", "-t", "chat", "-l", "--", text)

    def presses(self, *keys: str) -> None:
        self._tmux("send-keys", "-t", "chat", *keys)

    def says(self, text: str) -> None:
        """Type a line and press Enter."""
        self.types(text)
        self.presses("Enter")

    def pastes(self, text: str) -> None:
        """Paste as terminals do, with bracketed paste."""
        self._tmux("set-buffer", "--", text)
        self._tmux("paste-buffer", "-p", "-t", "chat")

    def resizes(self, columns: int, rows: int) -> None:
        self._tmux("resize-window", "-t", "chat", "-x", str(columns), "-y", str(rows))

    def waits(self, until: Callable[[str], bool], what: str = "the screen") -> str:
        """The screen, once it meets the condition."""
        deadline = time.monotonic() + WITHIN
        while not until(screen := self.screen):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what} did not appear; the screen shows:\n{screen}")
            time.sleep(0.05)
        return screen

    def sees(self, text: str, times: int = 1) -> str:
        """The screen, once this text is on it."""
        return self.waits(lambda screen: screen.count(text) >= times, repr(text))

    def rests(self) -> str:
        """The screen, once the prompt is there and the status is idle."""
        return self.waits(lambda screen: screen.splitlines()[-1:] != [] and "· idle" in screen.splitlines()[-1], "rest")

    def ends(self) -> int:
        """The exit code, once the program has ended; 128 plus the signal if one killed it."""
        self.waits(lambda _: self._code.exists() and self._code.read_text().endswith("\n"), "the end of the program")
        return int(self._code.read_text())
