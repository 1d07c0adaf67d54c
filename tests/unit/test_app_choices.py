"""Decisions of the app layer: the workspace of a command, and the entries of the last turn."""

from pathlib import Path

import pytest

from outrider.app.workspaces import terminal_workspace
from outrider.core.errors import Refused
from outrider.core.events import Body, Ended, Entry, Input, Reply, Started
from outrider.core.turn_result import last_turn


@pytest.fixture
def ada(tmp_path: Path) -> Path:
    """A person's home folder, with a project and an Outrider home in it."""
    for folder in ("project", ".outrider/workspaces/one", ".outrider/logs"):
        (tmp_path / "ada" / folder).mkdir(parents=True)
    return tmp_path / "ada"


def test_a_terminal_command_works_in_the_current_folder(ada: Path) -> None:
    assert terminal_workspace(ada / "project", ada, "", ada / ".outrider") == ada / "project"
    assert terminal_workspace(ada, ada, str(ada / "project"), ada / ".outrider") == ada / "project"


@pytest.mark.parametrize("folder", [".", "..", ".outrider", ".outrider/logs", ".outrider/workspaces", "/"])
def test_no_workspace_contains_the_home_folder_or_outriders_own_files(ada: Path, folder: str) -> None:
    assert terminal_workspace(ada / folder, ada, "", ada / ".outrider") is None
    with pytest.raises(Refused, match="cannot be a workspace"):
        terminal_workspace(ada / "project", ada, str(ada / folder), ada / ".outrider")


@pytest.mark.parametrize(("path", "top"), [("/dev/shm", "/dev"), ("/proc/1", "/proc"), ("/sys/fs", "/sys")])
def test_no_workspace_is_in_a_folder_of_the_kernel(ada: Path, path: str, top: str) -> None:
    if not Path(path).is_dir():
        pytest.skip(f"this machine has no {path}")
    assert terminal_workspace(Path(path), ada, "", ada / ".outrider") is None
    with pytest.raises(Refused) as refused:
        terminal_workspace(ada / "project", ada, path, ada / ".outrider")
    assert str(refused.value) == (
        f"{path} cannot be a workspace: everything in {top} belongs to the system; choose a folder elsewhere"
    )


def test_a_workspace_that_outrider_created_is_allowed(ada: Path) -> None:
    own = ada / ".outrider" / "workspaces" / "one"
    assert terminal_workspace(own, ada, "", ada / ".outrider") == own


def test_a_turn_that_ended_before_the_input_is_not_part_of_the_last_turn() -> None:
    bodies: list[Body] = [Input("b"), Ended("failed", 3), Started(), Reply("yes", 6), Ended("done", 6)]
    entries = [Entry(seq, 0, body) for seq, body in enumerate(bodies, 4)]
    assert last_turn(entries) == entries[2:]
    assert last_turn(entries[2:]) == entries[2:]
    assert last_turn([]) == []
