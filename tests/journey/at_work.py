"""For journeys through the chat with real commands: a model that starts them, and gates at which they wait."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from outrider.testing.scripted_model import ScriptedReply, call, says
from outrider.testing.scripted_server.script import script
from outrider.testing.scripted_server.server import ScriptedServer
from tests.journey.support import Person


@contextmanager
def at_work(person: Person, *lines: Any) -> Generator[ScriptedServer]:
    """A model that says these lines; what commands do outside a sandbox is not asked for where there is none."""
    person.home.mkdir(exist_ok=True)
    (person.home / "config.toml").write_text('[[rules]]\nverdict = "allow"\ntool = "shell"\nneeds = ["host"]\n')
    with ScriptedServer(script(*lines)) as server:
        person.uses(server.url)
        yield server


def shell(command: str, **others: object) -> ScriptedReply:
    """The model runs this command and says nothing."""
    return says("", call("shell", command=command, **others))


def gate(person: Person, name: str = "gate") -> Path:
    """A place in the workspace where a command waits until something is written to it."""
    path = person.project / name
    os.mkfifo(path)
    return path


def opens(path: Path, words: str = "") -> None:
    """Let the command go on that reads there, once it does."""
    path.write_text(words)
