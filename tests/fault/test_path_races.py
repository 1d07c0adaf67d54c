"""Folders that another process exchanges for links all the time: no read, write or command ever reaches their targets.

`--hypothesis-profile=long` makes twenty times as many tries.
"""

import os
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path

import anyio
import msgspec
import pytest
from hypothesis import settings

from outrider.config.environment import child_environment
from outrider.core.errors import Refused
from outrider.core.store_port import Session
from outrider.core.tasks import Task, TaskSpec
from outrider.core.types import WorkspaceIdentity
from outrider.workspaces.commands import CommandSettings, LocalCommands
from outrider.workspaces.held_paths import FileIdentity, HeldPaths, hold_path, identity_of_status, workspace_identity
from outrider.workspaces.local import LocalWorkspace
from outrider.workspaces.sandbox.bubblewrap import BubblewrapSandbox
from outrider.workspaces.sandbox.detect import detect
from outrider.workspaces.sandbox.port import Sandbox
from outrider.workspaces.sandbox.types import NoSandbox, SandboxedCommand
from tests.support.swapping import swapping

pytestmark = [pytest.mark.promise("S8"), pytest.mark.promise("S16")]
CANARY = "CANARY-91bd"
TRIES = settings().max_examples
"""100 in the checks, 2,000 in the long variant."""


class Ground:
    """A folder and a link to a secret one, which are exchanged for each other."""

    def __init__(self, folder: Path) -> None:
        self.outer, self.inner, self.link = folder / "w", folder / "w" / "sub", folder / "w" / "other"
        self.secret, self.home = folder / "secret", folder / "home"
        for path in (self.inner / "deep", self.secret / "deep", self.home, folder / "work"):
            path.mkdir(parents=True)
        for path in (self.secret, self.secret / "deep"):
            (path / "file").write_text(CANARY)
        for path in (self.inner, self.inner / "deep"):
            (path / "file").write_text("plain")
        self.link.symlink_to(self.secret)
        self.work = folder / "work"
        self.identity: WorkspaceIdentity = workspace_identity(str(self.inner))
        self.before = self.secrets()

    def secrets(self) -> list[tuple[str, int, int]]:
        paths = [self.secret, *sorted(self.secret.rglob("*"))]
        return [(str(path), path.lstat().st_ino, path.lstat().st_mtime_ns) for path in paths]

    def leaked(self, act: Callable[[], object]) -> str:
        try:
            seen = act()
        except Refused:
            return "refused"
        return "leaked" if CANARY in str(seen) else "done"


@pytest.fixture
def ground(tmp_path: Path) -> Generator[Ground]:
    made = Ground(tmp_path)
    yield made
    assert made.secrets() == made.before


def tally(ground: Ground, acts: list[Callable[[], object]], tries: int) -> Counter[str]:
    with swapping(ground.inner, ground.link):
        return Counter(ground.leaked(act) for _ in range(tries) for act in acts)


def test_a_workspace_that_is_exchanged_for_a_link_leads_nowhere_else(ground: Ground) -> None:
    workspace = LocalWorkspace(str(ground.inner), ground.identity, (str(ground.home),))
    acts: list[Callable[[], object]] = [
        lambda: workspace.read("file"),
        lambda: workspace.read("deep/file"),
        lambda: workspace.write("deep/new", b"x"),
        lambda: [workspace.read(item.path) for item in workspace.walk(".").items],
        lambda: workspace.list(".", 3),
    ]
    seen = tally(ground, acts, TRIES * 5)
    assert (seen["leaked"], seen["done"] > 0, seen["refused"] > 0) == (0, True, True), seen


def test_a_folder_in_a_workspace_that_is_exchanged_for_a_link_leads_nowhere_else(ground: Ground) -> None:
    workspace = LocalWorkspace(str(ground.outer), workspace_identity(str(ground.outer)), (str(ground.home),))
    acts: list[Callable[[], object]] = [
        lambda: workspace.read("sub/file"),
        lambda: workspace.read("sub/deep/file"),
        lambda: workspace.write("sub/deep/new", b"x"),
        lambda: workspace.write("sub/file", b"plain", b"plain"),
        lambda: [workspace.read(item.path) for item in workspace.walk("sub").items],
    ]
    seen = tally(ground, acts, TRIES * 5)
    assert (seen["leaked"], seen["done"] > 0, seen["refused"] > 0) == (0, True, True), seen


def test_a_held_path_is_the_folder_or_nothing(ground: Ground) -> None:
    plain = {identity_of_status(path.stat()) for path in (ground.inner, ground.inner / "deep")}
    found = Counter[FileIdentity | str]()
    with swapping(ground.inner, ground.link):
        for number in range(TRIES * 20):
            path = ground.inner / "deep" if number % 2 else ground.inner
            try:
                with closing(hold_path(str(path))) as held:
                    found[held.identity] += 1
            except Refused:
                found["refused"] += 1
    assert (set(found) - {"refused"} == plain, found["refused"] > 0) == (True, True), found


def open_commands(ground: Ground, find: Callable[[], Sandbox | NoSandbox] = detect) -> LocalCommands:
    return LocalCommands(
        CommandSettings(ground.home / "tasks", find, child_environment(), 1 << 20, hidden=(str(ground.home),))
    )


@pytest.mark.needs("sandbox")
def test_a_need_is_resolved_to_the_folder_or_to_where_the_link_leads_and_wrapped_as_that(ground: Ground) -> None:
    commands = open_commands(ground)
    session = Session("s", "p", "n", str(ground.work), "", 0, 0, 0, False, False)
    shown = Counter[str]()
    with swapping(ground.inner, ground.link):
        for _ in range(TRIES * 10):
            with suppress(Refused):
                (need,) = commands.resolve_needs(session, [f"read:{ground.inner}"])
                shown[need] += 1
    assert set(shown) <= {f"read:{ground.inner}", f"read:{ground.secret}"}
    assert len(os.listdir("/proc/self/fd")) < 100


async def run(commands: LocalCommands, task: Task) -> str:
    try:
        process = await anyio.to_thread.run_sync(commands.start, task)
    except Refused:
        return "refused"
    started = msgspec.structs.replace(task, process=process)
    end = await commands.wait_for_end(started)
    output = commands.read(started, 0, 10_000).decode()
    if CANARY in output:
        return "leaked"
    if output.startswith("bwrap: ") and end.note.endswith("replaced while it was starting, and it was not run"):
        return "explained"
    return "done" if end.code == 0 else output.strip()[:60]


@pytest.mark.anyio
@pytest.mark.needs("sandbox")
async def test_a_command_sees_the_folder_that_was_allowed_or_does_not_run(ground: Ground) -> None:
    commands = open_commands(ground)
    script = f"cat {ground.inner}/file {ground.inner}/deep/file {ground.secret}/file; touch {ground.inner}/made"

    def task(number: int) -> Task:
        granted = (f"{'write' if number % 4 else 'read'}:{ground.inner}",)
        workspace, grants = (ground.work, granted) if number % 2 else (ground.inner, ())
        return Task(
            id=f"t-{number}",
            session="s",
            person="p",
            workspace=str(workspace),
            identity=identities[workspace],
            spec=TaskSpec(kind="command", call=f"c{number}", command=f"{script}; true", grants=grants),
            state="queued",
            created=0,
        )

    identities = {path: workspace_identity(str(path)) for path in (ground.inner, ground.work)}
    assert [await run(commands, task(number)) for number in range(2)] == ["done", "done"]
    (ground.inner / "made").unlink()
    with swapping(ground.inner, ground.link, most_idle=400_000):
        seen = Counter([await run(commands, task(number)) for number in range(2, max(30, TRIES // 4))])
    assert seen["leaked"] == 0, seen
    others = [each for each in seen if each not in ("done", "refused", "explained")]
    assert others == [], seen  # what bubblewrap cannot bind any more ends before the command starts


class LateSwap(BubblewrapSandbox, frozen=True):
    """A sandbox beside a program that replaces each granted folder just after it was checked."""

    def wrap(
        self, argv: Sequence[str], paths: HeldPaths, environ: Mapping[str, str], git_settings: str = ""
    ) -> SandboxedCommand:
        wrapped = super().wrap(argv, paths, environ, git_settings)
        for each in paths.read:
            os.rmdir(each.path)
        return wrapped


@pytest.mark.anyio
@pytest.mark.needs("bubblewrap")
async def test_a_command_that_was_not_run_because_a_folder_was_replaced_says_so(ground: Ground) -> None:
    found = detect(mode="bubblewrap")
    assert isinstance(found, BubblewrapSandbox)
    sandbox = LateSwap(**{name: getattr(found, name) for name in found.__struct_fields__})
    commands = open_commands(ground, lambda: sandbox)
    (granted := ground.outer / "granted").mkdir()
    task = Task(
        id="t-1",
        session="s",
        person="p",
        workspace=str(ground.work),
        identity=workspace_identity(str(ground.work)),
        spec=TaskSpec(kind="command", call="c", command="touch ran", grants=(f"read:{granted}",)),
        state="queued",
        created=0,
    )
    assert (await run(commands, task), list(ground.work.iterdir())) == ("explained", [])
