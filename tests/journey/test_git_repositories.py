"""Git in a workspace: the agent commits unasked, and a person allows what git would run for them later."""

import json
import subprocess
from pathlib import Path

import anyio
import pytest

from outrider.app.agent import Agent
from outrider.core.events import Asked, Result
from outrider.core.store_port import Session
from outrider.testing.scripted_model import ScriptedModel, call, says
from outrider.workspaces.sandbox.detect import SandboxMode
from tests.support import questions
from tests.support.outer import require_sandbox
from tests.support.tasking import TERMINAL, open_scripted, results, say_and_wait

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.promise("S8"),
    pytest.mark.needs("bubblewrap"),
    pytest.mark.needs("git"),
]
COMMIT = "git add -A && git -c user.name=Ann -c user.email=ann@example.com commit -qm second && git log --format=%s"


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    subprocess.run(["git", "init", "-q", "-b", "main", str(folder)], check=True, timeout=60)
    (folder / "a.txt").write_text("one\n")
    return folder


async def answer(agent: Agent, session: Session, count: int, answer: str) -> Asked:
    with anyio.fail_after(60):
        question = await questions.asked(agent, session, count)
    await agent.answer(session, question, answer)
    return question


async def test_a_commit_is_not_asked_and_a_setting_fails_with_a_hint(tmp_path: Path, work: Path) -> None:
    before = (work / ".git" / "config").read_bytes()
    model = ScriptedModel(
        says("", call("shell", command=COMMIT)),
        says("", call("shell", command="git config user.name Bob; git remote add origin /x")),
        says("", call("shell", command="git init -q own && cd own && git config user.name Bob")),
        says("", call("shell", command="git config user.email bob@example.com && git config user.name", workdir="own")),
        says("done"),
    )
    async with open_scripted(tmp_path, model) as agent:
        committed, refused, own, again = await results(agent, await say_and_wait(agent, "go"))
    assert (committed["exit_code"], committed["output"]) == (0, "second\n")
    assert f"needs=['write:{work}/.git']" in refused["message"]
    assert (own["exit_code"], again["output"]) == (0, "Bob\n")
    assert (work / ".git" / "config").read_bytes() == before


async def test_a_person_allows_a_command_to_change_the_settings(tmp_path: Path, work: Path) -> None:
    need = f"write:{work}/.git"
    wanted = call("shell", command="git config user.name Bob", needs=[need], why="to set the author")
    model = ScriptedModel(says("", wanted), says("", wanted), says("done"))
    async with open_scripted(tmp_path, model) as agent:
        session = await agent.session("s")
        await agent.post("go", session=session, address=TERMINAL)
        refused = await answer(agent, session, 1, "no")
        allowed = await answer(agent, session, 2, "once")
        with anyio.fail_after(60):
            await agent.wait(await agent.find(session.id))
        bodies = [entry.body for entry in await agent.journal(session) if isinstance(entry.body, Result)]
    assert (refused.needs, allowed.needs) == ((need,), (need,))
    assert ([body.failed for body in bodies], json.loads(bodies[1].text)["exit_code"]) == ([True, False], 0)
    assert "Bob" in (work / ".git" / "config").read_text()


@pytest.mark.parametrize("need", ["write:{work}", "write:{work}/a.txt", "read:{work}/.git"])
async def test_a_need_for_what_every_command_may_use_is_refused(tmp_path: Path, work: Path, need: str) -> None:
    model = ScriptedModel(says("", call("shell", command="true", needs=[need.format(work=work)])), says("done"))
    async with open_scripted(tmp_path, model) as agent:
        session = await say_and_wait(agent, "go")
        bodies = [entry.body for entry in await agent.journal(session) if isinstance(entry.body, Result)]
    assert [(body.failed, "leave this need out" in body.text) for body in bodies] == [(True, True)]


async def test_the_file_tools_ask_before_they_write_to_git(tmp_path: Path, work: Path) -> None:
    hook = call("write", path=".git/hooks/pre-commit", content="#!/bin/sh\ntouch pwned\n")
    model = ScriptedModel(
        says("", call("write", path="b.txt", content="two\n")),
        says("", hook),
        says("", call("edit", path=".git/config", old="bare = false", new="bare = true")),
        says("", hook),
        says("done"),
    )
    async with open_scripted(tmp_path, model) as agent:
        session = await agent.session("s")
        await agent.post("go", session=session, address=TERMINAL)
        first = await answer(agent, session, 1, "no")
        second = await answer(agent, session, 2, "no")
        assert ("bare = true" in (work / ".git" / "config").read_text(), _hook(work)) == (False, False)
        await answer(agent, session, 3, "once")
        with anyio.fail_after(60):
            await agent.wait(await agent.find(session.id))
    assert ("touch pwned" in first.question, "bare = true" in second.question) == (True, True)
    assert (first.needs, _hook(work)) == ((f"write:{work}/.git",), True)


def _hook(work: Path) -> bool:
    return (work / ".git" / "hooks" / "pre-commit").exists()


async def test_a_file_that_redirects_git_is_removed_and_the_model_reads_it(tmp_path: Path, work: Path) -> None:
    model = ScriptedModel(says("", call("shell", command="mkdir evil; echo ../evil >.git/commondir")), says("done"))
    async with open_scripted(tmp_path, model) as agent:
        (result,) = await results(agent, await say_and_wait(agent, "go"))
    assert result["reason"] == "removed .git/commondir, which would make git obey other settings"
    assert not (work / ".git" / "commondir").exists()


async def test_settings_that_git_would_include_cannot_be_created(tmp_path: Path, work: Path) -> None:
    with open(work / ".git" / "config", "a") as file:
        file.write("[include]\n\tpath = ../conf/shared.ini\n[core]\n\thooksPath = .husky/_\n")
    attack = "mkdir -p conf .husky/_; echo '[core] pager = ./evil' >conf/shared.ini; echo ./evil >.husky/_/pre-commit"
    rename = "mv conf old; mv .husky old; mkdir -p conf; echo evil >conf/shared.ini"
    model = ScriptedModel(says("", call("shell", command=f"{attack}; {rename}; git status --short")), says("done"))
    async with open_scripted(tmp_path, model) as agent:
        (result,) = await results(agent, await say_and_wait(agent, "go"))
    assert "Read-only file system" in result["output"]
    assert sorted(path.name for path in work.iterdir()) == [".git", "a.txt"]


@pytest.mark.parametrize("mode", ["bubblewrap", "landlock"])
async def test_commits_have_the_name_and_address_of_the_person(
    tmp_path: Path, work: Path, monkeypatch: pytest.MonkeyPatch, mode: SandboxMode
) -> None:
    require_sandbox(mode)
    person = tmp_path / "person"
    person.mkdir()
    (person / ".gitconfig").write_text("[user]\n\tname = Änn\n\temail = ann@example.com\n[core]\n\tpager = x\n")
    monkeypatch.setenv("HOME", str(person))
    monkeypatch.delenv("GIT_CONFIG_GLOBAL", raising=False)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    commit = "git add -A; git commit -qm x --allow-empty && git log -n 1 --format='%an %ae %cn' && cat ~/.gitconfig"
    own = "git init -q own && cd own && git config user.name Bob && git config --global user.email bob@example.com"
    model = ScriptedModel(
        says("", call("shell", command=commit)), says("", call("shell", command=f"{own} && {commit}")), says("done")
    )
    async with open_scripted(tmp_path, model, sandbox_mode=mode) as agent:
        first, second = await results(agent, await say_and_wait(agent, "go"))
    settings = '[user]\n\tname = "Änn"\n\temail = {}\n'
    assert first["output"] == "Änn ann@example.com Änn\n" + settings.format('"ann@example.com"')
    assert second["output"] == "Bob bob@example.com Bob\n" + settings.format("bob@example.com")
    assert "ann@example.com" in (person / ".gitconfig").read_text()


@pytest.mark.parametrize("kind", ["work tree", "separate folder", "link"])
@pytest.mark.parametrize("mode", ["bubblewrap", "landlock"])
async def test_a_git_folder_outside_the_workspace_is_named_and_can_be_allowed(
    tmp_path: Path, mode: SandboxMode, kind: str
) -> None:
    require_sandbox(mode)
    folder = make_outside(tmp_path, kind)
    commit = "git -c user.name=Ann -c user.email=ann@example.com commit -qm second --allow-empty"
    need = f"write:{folder}"
    model = ScriptedModel(
        says("", call("shell", command="git log --format=%s")),
        says("", call("shell", command="git log --format=%s", needs=[f"read:{folder}"], why="to look")),
        says("", call("shell", command=commit, needs=[f"read:{folder}"], why="to commit")),
        says("", call("shell", command=f"{commit} && git log --format=%s", needs=[need], why="to commit")),
        says("done"),
    )
    async with open_scripted(tmp_path, model, sandbox_mode=mode) as agent:
        session = await agent.session("s")
        await agent.post("go", session=session, address=TERMINAL)
        asked = [await answer(agent, session, count, "once") for count in (1, 2, 3)]
        with anyio.fail_after(60):
            await agent.wait(await agent.find(session.id))
        unseen, seen, refused, committed = await results(agent, session)
    assert f"needs=['read:{folder}'] to look only, or with needs=['{need}']" in unseen["message"], unseen
    assert (seen["output"], committed["output"]) == ("first\n", "second\nfirst\n")
    assert f"needs=['{need}']" in refused["message"], refused
    note = "Git's hooks and settings there run as you, outside the sandbox."
    assert [note in question.question for question in asked] == [False, False, True]


def make_outside(tmp_path: Path, kind: str) -> Path:
    """A workspace whose git folder is outside of it; that folder."""
    main, work = tmp_path / "main", tmp_path / "work"
    who = ("-c", "user.name=Ann", "-c", "user.email=ann@example.com")
    commands = {
        "work tree": [
            ("init", "-q", "-b", "main", str(main)),
            (*who, "-C", str(main), "commit", "-qm", "first", "--allow-empty"),
            ("-C", str(main), "worktree", "add", "-q", str(work)),
        ],
        "separate folder": [
            ("init", "-q", "-b", "main", "--separate-git-dir", str(tmp_path / "kept.git"), str(work)),
            (*who, "-C", str(work), "commit", "-qm", "first", "--allow-empty"),
        ],
        "link": [
            ("init", "-q", "-b", "main", str(work)),
            (*who, "-C", str(work), "commit", "-qm", "first", "--allow-empty"),
        ],
    }
    for words in commands[kind]:
        subprocess.run(["git", *words], check=True, timeout=60)
    if kind == "link":
        (work / ".git").rename(tmp_path / "kept.git")
        (work / ".git").symlink_to(tmp_path / "kept.git")
    return main / ".git" if kind == "work tree" else tmp_path / "kept.git"


@pytest.mark.parametrize("mode", ["bubblewrap", "landlock"])
async def test_a_link_to_the_git_folder_is_created_again(tmp_path: Path, work: Path, mode: SandboxMode) -> None:
    require_sandbox(mode)
    (work / ".git").rename(work / "real")
    (work / ".git").symlink_to("real")
    own = "git init -q own; echo '[core] pager = ./evil' >>own/.git/config"
    model = ScriptedModel(
        says("", call("shell", command="git status --short a.txt")),
        says("", call("shell", command="rm .git")),
        says("", call("shell", command=f"{own}; rm .git; mv own/.git .git")),
        says("done"),
    )
    async with open_scripted(tmp_path, model, sandbox_mode=mode) as agent:
        untouched, removed, replaced = await results(agent, await say_and_wait(agent, "go"))
    (aside,) = (path.name for path in work.iterdir() if path.name.startswith(".git.replaced-"))
    assert (untouched["output"], untouched.get("reason")) == ("?? a.txt\n", None)
    assert removed["reason"] == "created the link .git again"
    assert replaced["reason"] == f"created the link .git again; what was in its place is {aside} now"
    assert ((work / ".git").readlink(), "evil" in (work / aside / "config").read_text()) == (Path("real"), True)
