"""Every command as a program of its own: it prints what the same command prints inside the test's process."""

import subprocess
import sys
from pathlib import Path

import pytest

from outrider.testing.scripted_model import says
from outrider.testing.scripted_server.script import script
from outrider.testing.scripted_server.server import ScriptedServer
from tests.support.in_process import InProcessPerson

COMMANDS = [
    ("--version",),
    ("run", "--key", "k", "hello"),
    ("resume",),
    ("up", "status"),
    ("up", "logs"),
    ("sessions", "list"),
    ("tasks", "list"),
    ("questions",),
    ("permissions", "list"),
    ("runtime", "list"),
    ("key", "create", ""),
    ("key", "list"),
    ("config", "list"),
    ("doctor",),
    ("practice-model", "--port", "x"),
    ("chat",),
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_command_prints_the_same_as_a_program_of_its_own(tmp_path: Path, words: tuple[str, ...]) -> None:
    person = InProcessPerson(tmp_path)
    person.environ["COLUMNS"] = "100"
    with ScriptedServer(script(says("hello there"))) as server:
        person.uses(server.url)
        assert person.types("run", "--key", "k", "hello").out == "hello there\n"
        assert person.starts(*words) == person.types(*words)


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("outrider.cli.main", {"click", "msgspec", "anyio"}),
        ("outrider.cli.commands", {"msgspec", "anyio"}),
        ("outrider.cli.config", {"anyio", "uvicorn", "rich"}),
        ("outrider.cli.up", {"uvicorn", "starlette", "httpx2", "rich", "outrider.app.open", "outrider.store.sqlite"}),
        ("outrider.cli.run", {"uvicorn", "starlette", "httpx2", "rich", "outrider.app.open", "outrider.store.sqlite"}),
    ],
)
def test_a_command_starts_without_modules_it_does_not_need(module: str, heavy: set[str]) -> None:
    code = f"import sys, {module}; print(*sys.modules)"
    listing = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert heavy.intersection(listing.split()) == set()
