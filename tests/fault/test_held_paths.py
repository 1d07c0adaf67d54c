"""Folders that are moved, replaced or linked elsewhere while sessions use them: nothing acts anywhere else."""

import os
from collections.abc import AsyncGenerator
from pathlib import Path

import anyio
import pytest

from outrider.app.agent import Agent
from outrider.core.events import Asked
from outrider.core.store_port import Session
from outrider.testing.scripted_model import call, says
from outrider.testing.scripted_server.script import script
from outrider.testing.scripted_server.server import open_scripted_server
from tests.journey.support import Person
from tests.support.acp import World as AcpWorld
from tests.support.acp import do
from tests.support.codex import open_codex
from tests.support.commanded import act, finish, next_question, open_commanded, outcome, post

pytestmark = [pytest.mark.anyio, pytest.mark.promise("S8"), pytest.mark.promise("S10")]
needs_sandbox = pytest.mark.needs("sandbox")
CANARY = "CANARY-7f3a"
CHANGED = "is not the folder that this session works in"
CONTINUE = (
    "Put the folder back, or continue the session in the folder that you mean: "
    "outrider run --session 'my s' --workspace FOLDER …"
)


class World:
    """A person's folders, with a home of Outrider, and an agent that works in some of them."""

    def __init__(self, folder: Path, agent: Agent) -> None:
        self.agent = agent
        self.folder = folder
        self.home, self.ssh = folder / "home", folder / "person" / ".ssh"
        self.outer, self.inner = folder / "w", folder / "w" / "sub"
        self.data = folder / "data"
        for path in (self.ssh, self.inner, self.data / "plain"):
            path.mkdir(parents=True)
        (self.home / "config.toml").write_text(f"# {CANARY}\n")
        (self.ssh / "config.toml").write_text(f"# {CANARY}\n")
        (self.inner / "config.toml").write_text("mine\n")
        (self.data / "plain" / "config.toml").write_text("plain data\n")

    async def session(self, name: str, workspace: Path) -> Session:
        return await self.agent.in_workspace(workspace).session(name)

    def untouched(self) -> bool:
        whole = [(path / "config.toml").read_text() for path in (self.home, self.ssh)]
        return whole == [f"# {CANARY}\n"] * 2 and os.listdir(self.ssh) == ["config.toml"]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncGenerator[World]:
    async with open_commanded(tmp_path / "home") as agent:
        yield World(tmp_path, agent)


CALLS = {
    "read": call("read", path="config.toml"),
    "write": call("write", path="config.toml", content="loosened"),
    "edit": call("edit", path="config.toml", old=CANARY, new="loosened"),
    "list": call("list"),
    "search": call("search", pattern=CANARY),
    "shell": call("shell", command="cat config.toml; echo loosened >config.toml; touch effect; ls"),
}


@needs_sandbox
@pytest.mark.parametrize("target", ["home", "ssh"])
@pytest.mark.parametrize("name", CALLS)
async def test_a_session_whose_folder_another_session_replaced_by_a_link_does_nothing(
    world: World, name: str, target: str
) -> None:
    first, second = await world.session("a", world.outer), await world.session("b", world.inner)
    assert "mine" in outcome(await act(world.agent, second, CALLS["read"]))
    swap = f"mv sub moved && ln -s {getattr(world, target)} sub"
    assert '"exit_code":0' in outcome(await act(world.agent, first, call("shell", command=swap)))
    told = outcome(await act(world.agent, second, CALLS[name]))
    assert (CHANGED in told, CANARY in told, world.untouched()) == (True, False, True)


@needs_sandbox
async def test_a_folder_that_was_put_in_place_of_another_is_used_once_a_person_starts_there(world: World) -> None:
    first, second = await world.session("a", world.outer), await world.session("b", world.inner)
    await act(world.agent, first, call("shell", command="mv sub moved && mkdir sub && echo new >sub/config.toml"))
    assert CHANGED in outcome(await act(world.agent, second, CALLS["read"]))
    assert CHANGED in outcome(await act(world.agent, second, CALLS["shell"]))
    assert CHANGED in outcome(await act(world.agent, await world.agent.session("b"), CALLS["read"]))
    again = await world.session("b", world.inner)
    assert "new" in outcome(await act(world.agent, again, CALLS["read"]))
    os.rename(world.inner, world.folder / "other")
    os.rename(world.outer / "moved", world.inner)
    assert CHANGED in outcome(await act(world.agent, again, CALLS["read"]))


@needs_sandbox
async def test_a_folder_that_was_put_back_is_used_again(world: World) -> None:
    session = await world.session("b", world.inner)
    os.rename(world.inner, world.outer / "moved")
    assert "there is no folder" in outcome(await act(world.agent, session, CALLS["read"]))
    os.rename(world.outer / "moved", world.inner)
    assert "mine" in outcome(await act(world.agent, session, CALLS["shell"]))


@needs_sandbox
async def test_a_child_session_works_in_its_parents_folder_and_in_no_other(world: World) -> None:
    session = await world.session("b", world.inner)
    work = '[["read", {"path": "config.toml"}]]'
    await act(world.agent, session, call("delegate", work=work))
    (child,) = [each for each in await world.agent.sessions() if each.name.startswith("child")]
    assert (child.workspace, child.identity) == (session.workspace, session.identity)
    os.rename(world.inner, world.outer / "moved")
    world.inner.symlink_to(world.home)
    told = outcome(await act(world.agent, child, CALLS["read"]))
    assert (CHANGED in told, CANARY in told) == (True, False)


async def test_the_folder_of_a_session_without_a_recorded_identity_is_the_one_of_its_first_use(world: World) -> None:
    store = world.agent.home.store
    session = await store.create(world.agent.person, "old", str(world.inner))
    assert session.identity is None
    calls = [CALLS["read"], CALLS["read"]]
    assert outcome(await act(world.agent, session, *calls)).count("mine") == 2
    recorded = await world.agent.find("old")
    assert recorded.identity is not None
    os.rename(world.inner, world.outer / "moved")
    world.inner.mkdir()
    (world.inner / "config.toml").write_text("mine\n")
    assert CHANGED in outcome(await act(world.agent, session, CALLS["read"]))


async def test_a_session_whose_path_is_a_link_at_its_first_use_does_nothing(world: World) -> None:
    os.rename(world.inner, world.outer / "moved")
    world.inner.symlink_to(world.home)
    session = await world.agent.home.store.create(world.agent.person, "old", str(world.inner))
    told = outcome(await act(world.agent, session, CALLS["read"]))
    assert (CHANGED in told, CANARY in told) == (True, False)


@pytest.mark.parametrize("name", ["read", "write", "edit", "list", "search"])
@pytest.mark.parametrize("path", ["home/config.toml", "link/config.toml", "data/hard"])
async def test_outriders_own_files_are_hidden_from_tools_in_a_workspace_that_contains_them(
    world: World, name: str, path: str
) -> None:
    session = await world.session("all", world.folder)
    os.link(world.home / "config.toml", world.data / "hard")
    (world.folder / "link").symlink_to("home")
    target = {"path": path} if name != "list" else {"path": str(Path(path).parent), "depth": 3}
    arguments = {key: value for key, value in CALLS[name].args.items() if key != "path"}
    told = outcome(await act(world.agent, session, call(name, **arguments, **target)))
    assert (CANARY in told, world.untouched(), "store.db" in told) == (False, True, False)
    if path != "data/hard" or name not in ("list", "search"):
        assert "Outrider's own" in told
    if name == "search":
        found = outcome(await act(world.agent, session, call("search", pattern=CANARY)))
        assert ".ssh/config.toml" in found
        assert "hard" not in found


async def test_a_workspace_inside_outriders_home_is_no_secret_to_its_own_session(world: World) -> None:
    session = await world.agent.session("own")
    assert Path(session.workspace).is_relative_to(world.home)
    written = await act(world.agent, session, call("write", path="a", content="kept"), call("read", path="a"))
    assert "kept" in outcome(written)
    above = outcome(await act(world.agent, session, call("read", path="../../config.toml")))
    assert "leads out of the workspace" in above


@needs_sandbox
class TestNeeds:
    """A need is resolved when it is asked for, and is that path or nothing from then on."""

    async def test_the_question_shows_where_a_link_leads(self, world: World) -> None:
        link = world.data / "link"
        link.symlink_to(world.ssh)
        session = await world.session("a", world.outer)
        posted = await post(
            world.agent, session, call("shell", command="true", needs=[f"read:{link}", f"write:{link}"])
        )
        question = await next_question(world.agent, session)
        assert question.needs == (f"read:{world.ssh}", f"write:{world.ssh}")
        assert (str(world.ssh) in question.question, str(link) in question.question) == (True, False)
        await world.agent.answer(session, question, "no")
        await finish(world.agent, session, posted.seq)

    async def test_a_link_that_leads_elsewhere_after_a_yes_for_the_session_is_asked_again(self, world: World) -> None:
        link, plain = world.data / "link", world.data / "plain"
        link.symlink_to(plain)
        session = await world.session("a", world.outer)
        command = f"cat {plain}/config.toml {world.ssh}/config.toml"
        posted = await post(world.agent, session, call("shell", command=command, needs=[f"read:{link}"]))
        await world.agent.answer(session, await next_question(world.agent, session), "session")
        first = outcome(await finish(world.agent, session, posted.seq))
        assert ("plain data" in first, CANARY in first) == (True, False)
        assert [each.need for each in await world.agent.permissions()] == [f"read:{plain}"]
        link.unlink()
        link.symlink_to(world.ssh)
        posted = await post(world.agent, session, call("shell", command=command, needs=[f"read:{link}"]))
        second = await next_question(world.agent, session, 2)
        assert second.needs == (f"read:{world.ssh}",)
        await world.agent.answer(session, second, "no")
        assert CANARY not in outcome(await finish(world.agent, session, posted.seq))

    @pytest.mark.parametrize("is_link", [True, False])
    async def test_a_path_that_leads_elsewhere_while_the_question_waits_is_asked_for_again(
        self, world: World, is_link: bool
    ) -> None:
        link, plain = world.data / "link", world.data / "plain"
        link.symlink_to(plain)
        session = await world.session("a", world.outer)
        asked_for = link if is_link else plain
        command = f"cat {plain}/config.toml {world.ssh}/config.toml"
        posted = await post(world.agent, session, call("shell", command=command, needs=[f"read:{asked_for}"]))
        first = await next_question(world.agent, session)
        os.rename(asked_for, world.data / "moved")
        asked_for.symlink_to(world.ssh)
        await world.agent.answer(session, first, "once")
        second = await next_question(world.agent, session, 2)
        assert (first.needs, second.needs) == ((f"read:{plain}",), (f"read:{world.ssh}",))
        await world.agent.answer(session, second, "no")
        assert CANARY not in outcome(await finish(world.agent, session, posted.seq))

    async def test_a_path_that_became_a_link_after_a_yes_is_not_used(self, world: World) -> None:
        plain = world.data / "plain"
        session = await world.session("a", world.outer)
        posted = await post(
            world.agent, session, call("shell", command=f"cat {plain}/config.toml", needs=[f"read:{plain}"])
        )
        await world.agent.answer(session, await next_question(world.agent, session), "session")
        await finish(world.agent, session, posted.seq)
        os.rename(plain, world.data / "moved")
        plain.symlink_to(world.ssh)
        command = f"cat {plain}/config.toml {world.ssh}/config.toml"
        posted = await post(world.agent, session, call("shell", command=command, needs=[f"read:{plain}"]))
        again = await next_question(world.agent, session, 2)
        assert again.needs == (f"read:{world.ssh}",)
        await world.agent.answer(session, again, "no")
        assert CANARY not in outcome(await finish(world.agent, session, posted.seq))

    @pytest.mark.parametrize("need", ["read:{w}/sub", "write:{w}/sub", "read:{w}", "write:{w}/link"])
    async def test_a_path_in_the_workspace_is_refused_as_unneeded(self, world: World, need: str) -> None:
        (world.outer / "link").symlink_to("sub")
        session = await world.session("a", world.outer)
        entries = await act(world.agent, session, call("shell", command="true", needs=[need.format(w=world.outer)]))
        assert "is in the workspace" in outcome(entries)
        assert not any(isinstance(entry.body, Asked) for entry in entries)

    async def test_a_socket_cannot_be_asked_for(self, world: World) -> None:
        os.mkfifo(world.data / "pipe")
        session = await world.session("a", world.outer)
        told = outcome(
            await act(world.agent, session, call("shell", command="true", needs=[f"read:{world.data}/pipe"]))
        )
        assert "neither a folder nor a file" in told

    @pytest.mark.needs("bubblewrap")  # the folder above can be listed there
    async def test_a_single_file_can_be_asked_for(self, world: World) -> None:
        file = world.data / "plain" / "config.toml"
        session = await world.session("a", world.outer)
        command = f"cat {file}; ls {file.parent}; (echo x >{file}) 2>/dev/null || echo read-only"
        posted = await post(world.agent, session, call("shell", command=command, needs=[f"read:{file}"]))
        await world.agent.answer(session, await next_question(world.agent, session), "once")
        assert r"plain data\nconfig.toml\nread-only\n" in outcome(await finish(world.agent, session, posted.seq))


@needs_sandbox
@pytest.mark.needs("bubblewrap")  # it has a /proc of its own; hostile.txt tries the same for both
async def test_a_command_inherits_no_descriptor_of_a_folder(world: World) -> None:
    session = await world.session("a", world.outer)
    command = "ls -l /proc/self/fd /proc/1/fd | grep -c -- '-> /[^dp]' ; ls /proc/1/fd | wc -l"
    needs = [f"read:{world.data}/plain", f"write:{world.data}", f"read:{world.ssh}"]
    posted = await post(world.agent, session, call("shell", command=command, needs=needs))
    await world.agent.answer(session, await next_question(world.agent, session), "once")
    assert r'"output":"0\n3\n"' in outcome(await finish(world.agent, session, posted.seq))


async def test_an_acp_agent_gets_no_turn_in_a_folder_that_was_replaced(tmp_path: Path) -> None:
    world = AcpWorld(tmp_path)
    async with world.open_agent() as agent:
        session = await agent.session("s")
        assert (await agent.say(do(["say", "hello"]), session="s")).text == "hello"
        os.rename(world.work, tmp_path / "moved")
        world.work.symlink_to(world.home)
        refused = await agent.say(do(["say", "hello again"]), session="s")
        assert (refused.outcome, CHANGED in refused.error, len(world.prompts())) == ("failed", True, 1)
        world.work.unlink()
        os.rename(tmp_path / "moved", world.work)
        assert (await agent.say(do(["say", "back"]), session="s")).text == "back"
        assert (await agent.find("s")).identity == session.identity


@pytest.mark.timeout(120)
async def test_codex_gets_no_turn_in_a_folder_that_was_replaced(tmp_path: Path) -> None:
    async with (
        open_scripted_server(script(says("hello"), says("never"))) as server,
        open_codex(tmp_path, server.url) as agent,
    ):
        with anyio.fail_after(60):
            assert (await agent.say("hi", session="s")).text == "hello"
            os.rename(tmp_path / "work", tmp_path / "moved")
            (tmp_path / "work").symlink_to(tmp_path / "home")
            refused = await agent.say("hi", session="s")
    assert (refused.outcome, CHANGED in refused.error) == ("failed", True)


def test_a_command_in_a_new_folder_at_the_path_of_a_session_continues_the_session_there(tmp_path: Path) -> None:
    person = Person(tmp_path)
    (person.project / "a.txt").write_text("first\n")
    (person.home.parent / "elsewhere").mkdir()
    assert "first" in person.types("run", "-s", "s", "read a.txt").out
    os.rename(person.project, tmp_path / "moved")
    person.project.mkdir()
    (person.project / "a.txt").write_text("second\n")
    elsewhere = person.types("run", "-s", "s", "read a.txt", cwd=person.home.parent / "elsewhere")
    assert (elsewhere.code, CHANGED in elsewhere.err, "second" in elsewhere.out) == (1, True, False)
    assert "second" in person.types("run", "-s", "s", "read a.txt").out
    os.rename(person.project, tmp_path / "second")
    os.rename(tmp_path / "moved", person.project)
    assert CHANGED in person.types("run", "-s", "s", "read a.txt", cwd=person.home.parent / "elsewhere").err
    named = person.types(
        "run", "-w", str(person.project), "-s", "s", "read a.txt", cwd=person.home.parent / "elsewhere"
    )
    assert "first" in named.out


def test_a_session_continues_in_its_folder_at_another_path_once_a_person_starts_there(tmp_path: Path) -> None:
    person = Person(tmp_path)
    (person.project / "a.txt").write_text("first\n")
    (other := tmp_path / "other").mkdir()
    assert "first" in person.types("run", "-s", "my s", "read a.txt").out
    kept = person.types("run", "-w", str(other), "-s", "my s", "read a.txt")
    assert (kept.code, "cannot be changed" in kept.err) == (2, True)
    os.rename(person.project, moved := tmp_path / "moved")
    gone = person.types("run", "-s", "my s", "read a.txt", cwd=other)
    assert (gone.code, gone.err.strip()) == (
        2,
        f"outrider: there is no folder {person.project} to work in: it was moved or deleted. {CONTINUE}",
    )
    there = person.types("run", "-s", "my s", "read a.txt", cwd=moved)
    assert "first" in there.out
    assert f"session 'my s' works in {moved} from now on; its folder was {person.project}" in there.err
    person.project.mkdir()
    again = person.types("run", "-s", "my s", "read a.txt", cwd=moved)
    assert ("first" in again.out, "from now on" in again.err) == (True, False)


def test_a_session_without_its_folder_continues_in_another_one_that_a_person_names(tmp_path: Path) -> None:
    person = Person(tmp_path)
    (person.project / "a.txt").write_text("first\n")
    (other := tmp_path / "other").mkdir()
    (other / "a.txt").write_text("second\n")
    assert "first" in person.types("run", "-s", "my s", "read a.txt").out
    os.rename(person.project, tmp_path / "moved")
    person.project.mkdir()
    replaced = person.types("run", "-s", "my s", "read a.txt", cwd=other)
    assert (CHANGED in replaced.err, CONTINUE in replaced.err, "second" in replaced.out) == (True, True, False)
    named = person.types("run", "-s", "my s", "-w", ".", "read a.txt", cwd=other)
    assert "second" in named.out
    assert f"session 'my s' works in {other} from now on; its folder was {person.project}" in named.err
    kept = person.types("run", "-s", "my s", "-w", str(tmp_path / "moved"), "read a.txt")
    assert (kept.code, "cannot be changed" in kept.err) == (2, True)
