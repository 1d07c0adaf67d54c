"""A process that opens a home and runs one turn, which a test can kill."""

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
from outrider.core.events import Asked, Ended, Entry

ADDRESS = "terminal:test"
_TIMEOUT = 90.0


async def run_life(folder: Path, settings: Mapping[str, str], text: str, answer: str = "") -> None:
    """Resume what is unfinished, post one message by key, and wait for the end of its turn.

    With an `answer`, every question gets it at once.
    """
    config = load(folder / "home", {}, settings)
    async with outrider.open(config=config, workspace=folder / "work") as agent:
        await agent.resume_all()
        session = await agent.session("s")
        entry = await agent.post(text, session=session, key="once", address=ADDRESS)
        async with aclosing(agent.follow(session, entry.seq)) as events:
            async for event in events:
                match event:
                    case Entry(body=Ended()):
                        return
                    case Entry(body=Asked() as asked) if answer:
                        await agent.answer(session, asked, answer)
                    case _:
                        pass


def start_life(
    folder: Path, settings: Mapping[str, str], text: str = "go", fail: str = "", answer: str = ""
) -> "subprocess.Popen[bytes]":
    """Start such a process; it is killed at the failpoint `fail`."""
    (folder / "home").mkdir(mode=0o700, exist_ok=True)
    (folder / "work").mkdir(exist_ok=True)
    words = (sys.executable, "-m", "tests.support.life", str(folder), json.dumps(dict(settings)), text, answer)
    # A login shell would read the home folder of the person who runs the tests.
    environ = {"PATH": os.environ.get("PATH", ""), "LANG": "C.UTF-8", "HOME": str(folder)}
    root = str(Path(__file__).parents[2])
    return subprocess.Popen(words, cwd=root, env={**environ, "OUTRIDER_FAIL": fail}, stderr=subprocess.PIPE)


def killed_at(point: str, folder: Path, settings: Mapping[str, str], text: str = "go", answer: str = "") -> None:
    """Run such a process until it is killed at this failpoint."""
    with start_life(folder, settings, text, point, answer) as life:
        try:
            _, error = life.communicate(timeout=_TIMEOUT)
        finally:
            life.kill()
    assert life.returncode == -9, error.decode()


if __name__ == "__main__":
    anyio.run(run_life, Path(sys.argv[1]), json.loads(sys.argv[2]), *sys.argv[3:])
