"""Outrider installed inside a workspace: the model cannot change what confines it."""

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import outrider
from outrider.testing.scripted_model import ScriptedCall, call, says
from outrider.testing.scripted_server.script import script
from outrider.testing.scripted_server.server import ScriptedServer
from tests.support.commanded import act, open_commanded, outcome

pytestmark = pytest.mark.promise("S10")


class Project:
    """A folder with a virtual environment from which Outrider runs in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder.parent / "outrider-home"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / ".venv"], check=True)
        version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
        self.packages = folder / ".venv" / "lib" / version / "site-packages"
        places = [sysconfig.get_path("purelib"), str(Path(outrider.__file__).parents[1])]
        (self.packages / "places.pth").write_text("\n".join(places))

    def run(self, *calls: ScriptedCall, mode: str) -> Sequence[str]:
        """The results of these calls, each in a reply of its own."""
        replies = [says("", each) for each in calls]
        with ScriptedServer(script(*replies, says("done"))) as server:
            ran = subprocess.run(
                [self.folder / ".venv/bin/python", "-m", "outrider", "run", "--json", "go"],
                cwd=self.folder,
                env={
                    "PATH": os.defpath,
                    "HOME": str(self.folder.parent),
                    "OUTRIDER_HOME": str(self.home),
                    "OUTRIDER_MODEL": "openai-chat:scripted",
                    "OUTRIDER_MODEL_URL": server.url,
                    "OUTRIDER_MODEL_KEY": "k-12345678",
                    "OUTRIDER_SANDBOX_MODE": mode,
                },
                capture_output=True,
                text=True,
                check=True,
            )
        entries = [json.loads(line) for line in ran.stdout.splitlines()]
        return [entry["text"] for entry in entries if entry["type"] == "result"]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "project").mkdir()
    return Project(tmp_path / "project")


def changes(project: Project) -> Sequence[ScriptedCall]:
    inside = project.packages.relative_to(project.folder)
    return (
        call("shell", command=f"echo 'import os' > {inside}/evil.pth"),
        call("shell", command="mv .venv .elsewhere && mkdir .venv"),
        call("shell", command="rm -rf .venv/bin/python"),
        call("write", path=f"{inside}/evil.pth", content="import os"),
        call("shell", command="true", needs=[f"write:{project.folder}/.venv"]),
    )


@pytest.mark.needs("bubblewrap")
def test_commands_and_file_tools_cannot_change_the_program_that_runs_them(project: Project) -> None:
    results = project.run(*changes(project), call("shell", command="echo ok > own && cat own"), mode="bubblewrap")
    assert all("Read-only file system" in text or "busy" in text for text in results[:3]), results[:3]
    assert "is a part of the program of Outrider" in results[3]
    assert "is in the workspace" in results[4]
    assert '"output":"ok\\n"' in results[5]
    assert not (project.packages / "evil.pth").exists()
    assert (project.folder / ".venv/bin/python").exists()


def test_where_a_part_of_a_workspace_cannot_be_read_only_no_command_runs_there(project: Project) -> None:
    from outrider.workspaces.sandbox import NoSandbox, detect

    if isinstance(found := detect(mode="landlock"), NoSandbox):
        pytest.skip(found.why)
    results = project.run(*changes(project), mode="landlock")
    assert all("contains the program of Outrider" in text for text in results[:3]), results[:3]
    assert not (project.packages / "evil.pth").exists()
    assert (project.folder / ".venv/bin/python").exists()


@pytest.fixture
def alias(tmp_path: Path) -> Iterator[Path]:
    """A second mount of the folder that contains Outrider's home."""
    (tmp_path / "real").mkdir()
    (tmp_path / "alias" / "inner").mkdir(parents=True)
    mounted = tmp_path / "alias" / "inner"
    if subprocess.run(["mount", "--bind", tmp_path / "real", mounted], check=False, capture_output=True).returncode:
        pytest.skip("this account cannot mount")
    yield mounted
    subprocess.run(["umount", mounted], check=True)


@pytest.mark.anyio
@pytest.mark.needs("sandbox", "mount")
@pytest.mark.parametrize("is_inside", [False, True])
async def test_a_second_mount_of_outriders_home_is_recognised(tmp_path: Path, alias: Path, is_inside: bool) -> None:
    home, folder = tmp_path / "real" / "home", alias.parent if is_inside else alias
    async with open_commanded(home) as agent:
        session = await agent.in_workspace(folder).session("s")
        name = alias.relative_to(folder) / "home" / "config.toml"
        entries = await act(
            agent, session, call("shell", command=f"echo x >> {name}"), call("write", path=str(name), content="x")
        )
    assert "contains Outrider's own files" in outcome(entries)
    assert "stays hidden from tools" in outcome(entries)
    assert not (home / "config.toml").exists()
