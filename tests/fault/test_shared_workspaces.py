"""Two people and three sessions whose folders are shared and nested, each acting against each other.

Ann works in a folder and, in a second session, in a folder inside it; Bob works in the inner folder too. After each act
of one session, another one tries everything. Nobody reads or changes what no session may reach, and nobody in the inner
folder reads or changes the rest of the outer one.
"""

import os
from collections.abc import AsyncGenerator, Mapping
from itertools import permutations
from pathlib import Path

import anyio
import pytest
from hypothesis import settings

from outrider.app.agent import Agent
from outrider.core.events import Asked, Entry
from outrider.core.store_port import Session
from outrider.testing.scripted_model import ScriptedCall, call
from tests.support.commanded import finish, open_commanded, outcome, post

pytestmark = [pytest.mark.anyio, pytest.mark.needs("sandbox"), pytest.mark.promise("S8"), pytest.mark.promise("S16")]
NOBODY, OUTER = "CANARY-nobody", "CANARY-outer"
"""What no session may read, and what only the session in the outer folder may read."""
NAMES = ("ann-outer", "ann-inner", "bob-inner")


class World:
    """The folders and the sessions."""

    def __init__(self, folder: Path, agent: Agent) -> None:
        self.agent = agent
        self.home, self.ssh, self.data = folder / "home", folder / "person" / ".ssh", folder / "data"
        self.outer, self.inner = folder / "w", folder / "w" / "sub"
        self.aside = folder / "aside"
        for path in (self.ssh, self.inner, self.data / "allowed"):
            path.mkdir(parents=True)
        for path in (self.home, self.ssh):
            (path / "config.toml").write_text(f"{NOBODY}\n")
        (self.outer / "config.toml").write_text(f"{OUTER}\n")
        (self.inner / "config.toml").write_text("inner\n")
        (self.data / "allowed" / "config.toml").write_text("allowed\n")
        (self.data / "link").symlink_to("allowed")
        self.sessions: dict[str, Session] = {}

    async def open_sessions(self) -> None:
        bob = self.agent.for_person("bob")
        self.sessions = {
            "ann-outer": await self.agent.in_workspace(self.outer).session("outer"),
            "ann-inner": await self.agent.in_workspace(self.inner).session("inner"),
            "bob-inner": await bob.in_workspace(self.inner).session("inner"),
        }

    def root(self, name: str) -> Path:
        return self.outer if name == "ann-outer" else self.inner

    def agent_of(self, name: str) -> Agent:
        return self.agent.for_person("bob", can_approve=True) if name.startswith("bob") else self.agent

    def guarded(self) -> dict[str, str]:
        """What nobody may change."""
        files = [*self.ssh.iterdir(), self.home / "config.toml", *(self.data / "allowed").iterdir()]
        return {str(path): path.read_text() for path in files}

    def outer_only(self) -> dict[str, str]:
        """What only the session in the outer folder may change."""
        return {
            path.name: path.read_text() for path in self.outer.iterdir() if path.is_file() and not path.is_symlink()
        }

    def restore(self) -> None:
        """Put the inner folder back, with its first content."""
        for path in [*self.outer.iterdir()]:
            if path.name in ("sub", "moved"):
                if path.is_symlink():
                    path.unlink()
                elif (path / "mark").exists():
                    os.rename(path, self.aside)
                else:
                    os.rename(path, self.aside.with_name(f"junk-{len(os.listdir(self.aside.parent))}"))
            elif path.name != "config.toml":
                path.unlink()
        os.rename(self.aside, self.inner)
        (self.outer / "config.toml").write_text(f"{OUTER}\n")
        (self.inner / "config.toml").write_text("inner\n")
        (self.data / "link").unlink()
        (self.data / "link").symlink_to("allowed")


@pytest.fixture
async def world(tmp_path: Path) -> AsyncGenerator[World]:
    async with open_commanded(tmp_path / "home") as agent:
        made = World(tmp_path, agent)
        (made.inner / "mark").write_text("")
        await made.open_sessions()
        yield made


def acts(world: World, victim: Path) -> Mapping[str, ScriptedCall]:
    """What one session does: to the folder of another one, to its own, and to what a link leads to."""
    root, ssh, home = victim, world.ssh, world.home
    tried = f"cat {root}/config.toml {world.outer}/config.toml {ssh}/* {home}/config.toml config.toml"
    return {
        "read": call("read", path="config.toml"),
        "read above": call("read", path="../config.toml"),
        "write": call("write", path="config.toml", content="loosened"),
        "write above": call("write", path=str(world.outer / "planted"), content="loosened"),
        "edit": call("edit", path="config.toml", old="CANARY", new="loosened"),
        "list": call("list", depth=3),
        "search": call("search", pattern="CANARY"),
        "shell": call("shell", command=f"{tried}; echo loosened >config.toml; echo x >{ssh}/new; echo x >../planted"),
        "need": call("shell", command=f"{tried} {world.data}/allowed/config.toml", needs=[f"read:{world.data}/link"]),
        "need of a secret": call("shell", command=tried, needs=[f"read:{ssh}", f"write:{home}"]),
        "need of a folder": call("shell", command=tried, needs=[f"write:{root}"]),
        "rename": call("shell", command=f"mv {root} {world.outer}/moved; mkdir {root}; echo x >{root}/config.toml"),
        "link to the keys": call("shell", command=f"mv {root} {world.outer}/moved; ln -s {ssh} {root}"),
        "link to the home": call("shell", command=f"mv {root} {world.outer}/moved; ln -s {home} {root}"),
    }


async def carefully(world: World, agent: Agent, session: Session, after: int) -> None:
    """Answer questions as a careful person: yes to the one folder that is meant, no to anything else."""
    async for event in agent.follow(session, after):
        if isinstance(event, Entry) and isinstance(event.body, Asked):
            meant = event.body.needs == (f"read:{world.data / 'allowed'}",)
            await agent.answer(session, event.body, "once" if meant else "no")


async def perform(world: World, name: str, act: ScriptedCall) -> str:
    agent, session = world.agent_of(name), world.sessions[name]
    posted = await post(agent, session, act)
    entries: list[Entry] = []
    async with anyio.create_task_group() as group:
        group.start_soon(carefully, world, agent, session, posted.seq)
        entries += await finish(agent, session, posted.seq)
        group.cancel_scope.cancel()
    return outcome(entries)


# In the checks, those of one person with each other, and of two people in each order; in the long variant all of them.
PAIRS = [
    (first, second)
    for first, second in permutations(NAMES, 2)
    if settings().max_examples > 100 or (first, second) not in [("ann-outer", "bob-inner"), ("bob-inner", "ann-inner")]
]


@pytest.mark.parametrize(("first", "second"), PAIRS)
async def test_no_byte_and_no_effect_crosses(world: World, first: str, second: str) -> None:
    guarded = world.guarded()
    crossed: list[tuple[str, str, str]] = []
    texts: list[str] = []

    async def crosses(name: str, act: ScriptedCall) -> bool:
        outer = world.outer_only()
        told = await perform(world, name, act)
        texts.append(told)
        if name != "ann-outer" and (OUTER in told or world.outer_only() != outer):
            return True
        return NOBODY in told or world.guarded() != guarded

    for name, act in acts(world, world.root(second)).items():
        if await crosses(first, act):
            crossed.append((first, name, ""))
        for other, answer in acts(world, world.root(first)).items():
            if await crosses(second, answer):
                crossed.append((first, name, other))
        world.restore()
    assert crossed == []
    # The acts were real: a careful yes opened a folder, and a replaced folder was noticed.
    assert any("allowed" in text for text in texts)
    is_inner = world.root(second) == world.inner and first == "ann-outer"
    assert any("is not the folder that this session works in" in text for text in texts) == is_inner
