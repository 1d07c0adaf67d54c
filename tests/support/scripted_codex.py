"""The scripted app-server as a test sees it: its script, the requests it got, and its processes."""

import json
import shlex
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import outrider
from outrider.app.agent import Agent
from outrider.config.load import load
from tests.support.survivors import living

ROOT = Path(__file__).parents[2]
Step = Mapping[str, object]
Faults = Mapping[str, object]


def at(moment: str, *acts: str) -> Faults:
    """At this moment (`item/completed commandExecution`, `got turn/start`, `answered turn/start`), once: this."""
    return {"at": {moment: acts}}


class ScriptedCodex:
    """A program in a folder. Every turn of a thread plays the next one of the script; after the last it says `ok`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "scripted"
        self.folder.mkdir()
        self.home = folder / "home"
        self.work = folder / "work"
        self.work.mkdir()
        (self.folder / "received").touch()
        (self.folder / "lives").touch()
        self.command = str(self.folder / "codex")
        python = shlex.join([sys.executable, "-S", "-P", "-m", "tests.support.fake_codex", str(self.folder)])
        Path(self.command).write_text(f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(ROOT))} exec {python} "$@"\n')
        Path(self.command).chmod(0o755)
        self.will()

    def will(
        self,
        *turns: Sequence[Step],
        faults: Faults | None = None,
        lives: int = 1,
        spelling: str = "thread.id",
        version: str = "0.163.0",
    ) -> None:
        """Set the script for its next starts; the faults happen in its first `lives` processes."""
        written = {
            "turns": turns,
            "faults": faults or {},
            "faulty_lives": lives,
            "spelling": spelling,
            "version": version,
        }
        (self.folder / "script.json").write_text(json.dumps(written))

    def requests(self, method: str) -> list[dict[str, Any]]:
        """The parameters of every such request, in all its processes."""
        return [m.get("params") or {} for m in self.messages("received") if m.get("method") == method]

    def messages(self, way: str) -> list[dict[str, Any]]:
        """Every message that it received (`heard`) or sent (`said`)."""
        return [json.loads(line) for line in (self.folder / way).read_text().splitlines()]

    @property
    def lives(self) -> list[int]:
        """The pids of all its processes, in order."""
        return [int(pid) for pid in (self.folder / "lives").read_text().split()]

    def alive(self) -> list[int]:
        """The pids of its running processes."""
        return [pid for pid in self.lives if pid in living(self.folder)]

    def release(self, name: str) -> None:
        """Let it continue where it waits for this."""
        (self.folder / name).touch()

    def settings(self, **more: str) -> dict[str, str]:
        settings = {name.replace("_", ".", 1): value for name, value in more.items()}
        home = str(self.folder)
        return {"runtime.name": "codex", "codex.command": self.command, "codex.home": home, **settings}

    @asynccontextmanager
    async def open_agent(self, **settings: str) -> AsyncGenerator[Agent]:
        """A home of Outrider whose turns it runs; opening it again is a restart."""
        self.home.mkdir(mode=0o700, exist_ok=True)
        config = load(self.home, {}, self.settings(**settings))
        async with outrider.open(config=config, workspace=self.work) as agent:
            yield agent
