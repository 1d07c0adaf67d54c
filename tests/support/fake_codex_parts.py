"""Parts of the scripted app-server: threads in a folder, and a pipe with faults."""

import fcntl
import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

from tests.support.drift import Drift

Json = dict[str, Any]


def for_ever() -> NoReturn:
    while True:
        time.sleep(1000)


class Threads:
    """Threads in a folder, as Codex stores them: a new process finds their completed items and their writer."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._folder.mkdir(exist_ok=True)
        self._locks: dict[str, int] = {}
        self._guard = threading.Lock()

    def own(self, thread: str) -> bool:
        """Become its only writer, until the process exits."""
        if thread not in self._locks:
            descriptor = os.open(self._folder / f"{thread}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                return False
            self._locks[thread] = descriptor
        return True

    def read(self, thread: str) -> list[Json] | None:
        """Its turns; None when it has none."""
        path = self._folder / f"{thread}.json"
        return json.loads(path.read_text()) if path.exists() else None

    def count_response(self, thread: str) -> int:
        """Count a response of the model in this thread; how many there were, in all processes."""
        with (self._folder / f"{thread}.responses").open("a+") as file:
            file.write(".")
            return file.tell()

    def write(self, thread: str, turn: str, item: Json | None, status: str = "") -> None:
        """Add a completed item, or set the status of the turn."""
        with self._guard:
            turns = self.read(thread) or []
            new: Json = {"id": turn, "items": [], "status": "interrupted", "error": None}
            if all(each["id"] != turn for each in turns):
                turns.append(new)
            current = next(each for each in turns if each["id"] == turn)
            if item is not None:
                current["items"].append(item)
            current["status"] = status or current["status"]
            path = self._folder / f"{thread}.{os.getpid()}"
            path.write_text(json.dumps(turns))
            path.replace(self._folder / f"{thread}.json")


class Wire:
    """The pipe and its faults."""

    def __init__(self, folder: Path, faults: Json) -> None:
        self._folder = folder
        self._at: dict[str, list[str]] = dict(faults.get("at", {}))
        self._drops: list[str] = faults.get("drops", [])
        self._lock = threading.RLock()
        self.is_silent = False
        self.is_deaf = False
        self._drift = -1
        self._sent: dict[str, int] = {}
        """How many messages of each name were sent since the file `drift` changed."""

    def notify(self, method: str, **params: Any) -> None:
        """Send a notification, unless it has to be lost."""
        kind = params["item"]["type"] if "item" in params else ""
        name = f"{method} {kind}".strip()
        self.meet(f"before {name}")
        if not self.is_silent and not self.is_deaf and method not in self._drops and name not in self._drops:
            self.put({"method": method, "params": params, "emittedAtMs": 1})
        self.meet(name)

    def put(self, message: Json, name: str = "") -> None:
        """Send a message, with the difference that a test wants in the one of this name."""
        self.send(self.differ(message, name or message.get("method", "")))

    def send(self, message: Json) -> None:
        content = json.dumps(message).encode() + b"\n"
        with self._lock:
            with (self._folder / "said").open("ab") as file:
                file.write(content)
            while content:
                content = content[os.write(1, content) :]

    def differ(self, message: Json, name: str) -> Json:
        """The file `drift` says which message is to be different, and how; it is removed when that is done."""
        path = self._folder / "drift"
        with self._lock:
            if not path.exists():
                return message
            wanted = json.loads(path.read_text())
            if wanted["number"] != self._drift:
                self._drift, self._sent = wanted["number"], {}
            count = self._sent[name] = self._sent.get(name, 0) + 1
            if (name, count) != (wanted["name"], wanted["count"]):
                return message
            path.unlink()
        return Drift(tuple(wanted["path"]), wanted["how"], wanted["value"]).apply(message)

    def meet(self, moment: str) -> None:
        """Run the faults of this moment, once."""
        for act in self._at.pop(moment, []):
            word, _, rest = act.partition(" ")
            getattr(self, f"act_{word}")(rest)
        if self.is_deaf:
            for_ever()

    def act_exit(self, code: str) -> None:
        os._exit(int(code or 3))

    def act_kill(self, _: str) -> None:
        os.kill(os.getpid(), signal.SIGKILL)
        for_ever()

    def act_silent(self, _: str) -> None:
        """Respond to requests, and send nothing else any more."""
        self.is_silent = True

    def act_deaf(self, _: str) -> None:
        """Send nothing any more."""
        self.is_deaf = True

    def act_late(self, seconds: str) -> None:
        time.sleep(float(seconds))

    def act_scold(self, text: str) -> None:
        os.write(2, text.encode() + b"\n")

    def act_raw(self, message: str) -> None:
        self.put(json.loads(message))

    def act_leave(self, _: str) -> None:
        """Start a process in a session of its own, and leave it running."""
        subprocess.Popen(("/bin/sleep", "1000"), stdin=subprocess.DEVNULL, start_new_session=True)

    def act_mark(self, name: str) -> None:
        """Show a test that this was reached."""
        (self._folder / name).touch()

    def act_wait(self, name: str) -> None:
        """Wait until a test creates this file."""
        while not (self._folder / name).exists():
            time.sleep(0.01)
