"""One life of a home that carries a turn, in a process of its own that a test can have killed."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import aclosing
from pathlib import Path

import anyio

import outrider
from outrider.config.load import load
from outrider.core.events import Ended, Entry

ADDRESS = "terminal:test"
_PATIENCE = 90.0


async def run_life(folder: Path, settings: Mapping[str, str], text: str) -> None:
    """Take up what is unfinished, hand in one message by key, and see it through."""
    config = load(folder / "home", {}, settings)
    async with outrider.open(config=config, workspace=folder / "work") as agent:
        await agent.resume_all()
        session = await agent.session("s")
        entry = await agent.post(text, session=session, key="once", address=ADDRESS)
        async with aclosing(agent.follow(session, entry.seq)) as events:
            async for event in events:
                if isinstance(event, Entry) and isinstance(event.body, Ended):
                    return


def start_life(
    folder: Path, settings: Mapping[str, str], text: str = "go", fail: str = ""
) -> "subprocess.Popen[bytes]":
    """Start a life; with `fail`, it is killed at this point of it."""
    (folder / "home").mkdir(mode=0o700, exist_ok=True)
    (folder / "work").mkdir(exist_ok=True)
    words = (sys.executable, "-m", "tests.support.life", str(folder), json.dumps(dict(settings)), text)
    # Login shells read what stands in the home folder of whoever runs the tests.
    environ = {"PATH": os.environ.get("PATH", ""), "LANG": "C.UTF-8", "HOME": str(folder)}
    root = str(Path(__file__).parents[2])
    return subprocess.Popen(words, cwd=root, env={**environ, "OUTRIDER_FAIL": fail}, stderr=subprocess.PIPE)


def killed_at(point: str, folder: Path, settings: Mapping[str, str], text: str = "go") -> None:
    """A life that ends at this point by kill -9; nothing else ends it."""
    with start_life(folder, settings, text, point) as life:
        try:
            _, said = life.communicate(timeout=_PATIENCE)
        finally:
            life.kill()
    assert life.returncode == -9, said.decode()


if __name__ == "__main__":
    anyio.run(run_life, Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3])
