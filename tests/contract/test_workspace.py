"""What every workspace promises: nothing outside its root is ever read or written, whatever the path."""

import os
import socket
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outrider.core.errors import Refused
from outrider.core.ports import FileListing, Workspace, WorkspaceItem
from outrider.workspaces.local import LocalWorkspace, open_local

pytestmark = pytest.mark.promise("S16")

CANARY = b"not yours\n"


class Ground:
    """A workspace with a canary beside it."""

    def __init__(self, folder: Path) -> None:
        self.outside = folder / "outside"
        self.root = folder / "root"
        self.outside.mkdir()
        self.root.mkdir()
        self.canary = self.outside / "canary.txt"
        self.canary.write_bytes(CANARY)
        self.workspace: Workspace = open_local(self.root)

    def refuses(self, act: Callable[[], object]) -> str:
        with pytest.raises(Refused) as refused:
            act()
        self.is_untouched()
        return str(refused.value)

    def is_untouched(self) -> None:
        assert (os.listdir(self.outside), self.canary.read_bytes()) == (["canary.txt"], CANARY)
        assert sorted(os.listdir(self.root.parent)) == ["outside", "root"]


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path)


def test_what_is_written_is_read_back(ground: Ground) -> None:
    ground.workspace.write("a/b.bin", b"\0\xff\n")
    assert ground.workspace.read("a/b.bin") == b"\0\xff\n"
    with ground.workspace.open_read("a/../a/./b.bin") as file:
        assert file.read(2) == b"\0\xff"


def test_absolute_paths_inside_are_accepted(ground: Ground) -> None:
    ground.workspace.write(f"{ground.root}/a.txt", b"hi")
    assert ground.workspace.read(f"{ground.workspace.root}//a.txt") == b"hi"


@pytest.mark.parametrize(
    "path",
    [
        "../outside/canary.txt",
        "a/../../outside/canary.txt",
        "./.././outside/canary.txt",
        "..",
        "/etc/passwd",
        "/",
        "/proc/self/root/etc/passwd",
        "{root}/../outside/canary.txt",
        "{root}-not/canary.txt",
        "{outside}/canary.txt",
        ".\\x00./outside/canary.txt",
        "\\x2e\\x2e/outside/canary.txt",
        "..\\x2foutside\\x2fcanary.txt",
        "a\0b",
        "a/" * 3_000 + "b",
        "x" * 300,
        "\udcff",
    ],
)
def test_paths_that_lead_out_or_are_invalid_are_refused(ground: Ground, path: str) -> None:
    (ground.root / "a").mkdir()
    path = path.replace("{root}", str(ground.root)).replace("{outside}", str(ground.outside))
    for act in (ground.workspace.read, ground.workspace.open_read, ground.workspace.list, ground.workspace.walk):
        ground.refuses(lambda act=act: act(path))


@pytest.mark.parametrize(
    "path", ["../outside/new.txt", "a/../../outside/new.txt", "{outside}/new.txt", "/new-file-at-the-top", "..", "."]
)
def test_nothing_is_written_outside(ground: Ground, path: str) -> None:
    (ground.root / "a").mkdir()
    ground.refuses(lambda: ground.workspace.write(path.replace("{outside}", str(ground.outside)), b"mine"))


def test_links_that_lead_out_are_refused_and_what_they_point_to_stays(ground: Ground) -> None:
    links = {
        "file": "../outside/canary.txt",
        "absolute": str(ground.canary),
        "new": "../outside/new.txt",
        "folder": "../outside",
        "top": "/",
        "chain": "hop",
        "hop": "folder/canary.txt",
        "proc": "/proc/self/cwd",
    }
    for name, target in links.items():
        (ground.root / name).symlink_to(target)
    for path in [*links, "folder/canary.txt", "folder/new.txt", "folder/sub/new.txt", "top/etc/hostname", "proc/x"]:
        told = [
            ground.refuses(lambda path=path: ground.workspace.read(path)),
            ground.refuses(lambda path=path: ground.workspace.write(path, b"mine")),
            ground.refuses(lambda path=path: ground.workspace.list(path)),
        ]
        assert told == [f"{path} leads out of the workspace; use paths inside {ground.root}"] * 3
    assert ground.workspace.walk(".") == FileListing([])


def test_links_in_a_loop_are_refused(ground: Ground) -> None:
    (ground.root / "a").symlink_to("b")
    (ground.root / "b").symlink_to("a")
    (ground.root / "self").symlink_to("self/x")
    (ground.root / "here").symlink_to(".")
    assert ground.refuses(lambda: ground.workspace.read("a")) == "a goes through too many links, maybe in a loop"
    ground.refuses(lambda: ground.workspace.write("self", b"x"))
    ground.refuses(lambda: ground.workspace.read("here/" * 60 + "x"))
    assert ground.workspace.walk(".") == FileListing([])


def test_links_that_stay_inside_work_for_reading_and_writing(ground: Ground) -> None:
    ground.workspace.write("real/a.txt", b"one")
    (ground.root / "way").symlink_to("real")
    (ground.root / "absolute").symlink_to(ground.root / "real")
    (ground.root / "real/up.txt").symlink_to("../way/a.txt")
    assert [ground.workspace.read(path) for path in ("way/a.txt", "absolute/a.txt", "real/up.txt")] == [b"one"] * 3
    ground.workspace.write("real/up.txt", b"two")
    assert (ground.root / "real/up.txt").is_symlink()
    assert (ground.root / "real/a.txt").read_bytes() == b"two"


def test_writing_to_a_dangling_link_inside_creates_its_target(ground: Ground) -> None:
    (ground.root / "way").symlink_to("later.txt")
    ground.workspace.write("way", b"hi")
    assert (ground.root / "later.txt").read_bytes() == b"hi"


def test_special_files_are_refused_without_waiting(ground: Ground) -> None:
    os.mkfifo(ground.root / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        folder = os.open(ground.root, os.O_RDONLY)
        server.bind(f"/proc/self/fd/{folder}/sock")
        os.close(folder)
        for name in ("pipe", "sock"):
            told = f"{name} is not a regular file (but a pipe, socket or device)"
            assert ground.refuses(lambda name=name: ground.workspace.read(name)) == told
            assert ground.refuses(lambda name=name: ground.workspace.write(name, b"x")) == told
    assert ground.refuses(lambda: ground.workspace.read("pipe/x")) == "pipe is not a folder"


def test_a_device_is_refused(ground: Ground) -> None:
    try:
        os.mknod(ground.root / "zero", 0o666 | stat.S_IFCHR, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("making a device needs more rights")
    ground.refuses(lambda: ground.workspace.read("zero"))


def test_a_folder_replaced_by_a_link_again_and_again_never_leads_out(ground: Ground) -> None:
    safe = ground.root / "safe"
    safe.mkdir()
    (safe / "canary.txt").write_bytes(b"mine")
    (ground.root / "folder").symlink_to("safe")
    stop = threading.Event()

    def swap() -> None:
        for turn in range(200_000):
            if stop.is_set():
                return
            temporary = ground.root / f"t{turn}"
            temporary.symlink_to("../outside" if turn % 2 else "safe")
            temporary.rename(ground.root / "folder")

    swapper = threading.Thread(target=swap)
    swapper.start()
    seen: set[bytes] = set()
    try:
        for number in range(4_000):
            with suppress(Refused):
                seen.add(ground.workspace.read("folder/canary.txt"))
            with suppress(Refused):
                ground.workspace.write(f"folder/{number % 7}.txt", b"x")
            with suppress(Refused):
                ground.workspace.walk("folder")
    finally:
        stop.set()
        swapper.join(60)
    assert seen <= {b"mine"}
    ground.is_untouched()


def test_a_file_replaced_by_a_link_again_and_again_never_reveals_the_outside(ground: Ground) -> None:
    stop = threading.Event()

    def swap() -> None:
        for turn in range(200_000):
            if stop.is_set():
                return
            temporary = ground.root / f"t{turn}"
            if turn % 2:
                temporary.symlink_to(ground.canary)
            else:
                temporary.write_bytes(b"mine")
            temporary.rename(ground.root / "file")

    swapper = threading.Thread(target=swap)
    swapper.start()
    seen: set[bytes] = set()
    try:
        for _ in range(4_000):
            with suppress(Refused):
                seen.add(ground.workspace.read("file"))
            with suppress(Refused):
                ground.workspace.write("file", b"mine")
    finally:
        stop.set()
        swapper.join(60)
    assert seen <= {b"mine"}
    ground.is_untouched()


FRAGMENTS = [
    "..",
    ".",
    "",
    "a",
    "b.txt",
    "out",
    "up",
    "loop",
    "outside",
    "canary.txt",
    "\\x2e",
    "\\x00",
    "~",
    " ",
    "\n",
]


@given(
    st.lists(st.one_of(st.sampled_from(FRAGMENTS), st.text(max_size=4)), max_size=8),
    st.sampled_from(["", "/", "{root}/", "{root}", "//", "\\"]),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_no_path_at_all_reads_or_writes_outside(
    tmp_path_factory: pytest.TempPathFactory, fragments: list[str], prefix: str
) -> None:
    ground = Ground(tmp_path_factory.mktemp("ground"))
    (ground.root / "a").mkdir()
    (ground.root / "out").symlink_to("../outside")
    (ground.root / "up").symlink_to("..")
    (ground.root / "a/loop").symlink_to("../a")
    path = prefix.replace("{root}", str(ground.root)) + "/".join(fragments)
    with suppress(Refused):
        assert ground.workspace.read(path) != CANARY
    with suppress(Refused):
        assert all("canary.txt" not in item.path for item in ground.workspace.list(path, 3).items)
    with suppress(Refused):
        ground.workspace.write(path, b"mine")
        assert ground.workspace.read(path) == b"mine"
    ground.is_untouched()


def test_writing_replaces_a_hard_link_and_leaves_the_other_name_alone(ground: Ground) -> None:
    os.link(ground.canary, ground.root / "a.txt")
    ground.workspace.write("a.txt", b"mine")
    assert ground.workspace.read("a.txt") == b"mine"
    ground.is_untouched()


def test_a_write_keeps_the_mode_and_leaves_nothing_else_behind(ground: Ground) -> None:
    script = ground.root / "run.sh"
    script.write_text("old")
    script.chmod(0o751)
    ground.workspace.write("run.sh", b"new")
    assert (stat.S_IMODE(script.stat().st_mode), script.read_bytes(), os.listdir(ground.root)) == (
        0o751,
        b"new",
        ["run.sh"],
    )


def test_a_write_drops_the_setuid_and_setgid_bits(ground: Ground) -> None:
    program = ground.root / "program"
    program.write_text("old")
    program.chmod(0o6751)
    ground.workspace.write("program", b"new")
    assert stat.S_IMODE(program.stat().st_mode) == 0o751


def test_a_write_protected_file_is_left_alone(ground: Ground) -> None:
    (ground.root / "a.txt").write_text("old")
    (ground.root / "a.txt").chmod(0o444)
    assert ground.refuses(lambda: ground.workspace.write("a.txt", b"new")) == "a.txt is write-protected"


def test_a_write_over_a_folder_or_below_a_file_is_refused(ground: Ground) -> None:
    ground.workspace.write("a/b.txt", b"")
    assert ground.refuses(lambda: ground.workspace.write("a", b"x")) == "a is a folder; list it instead"
    assert ground.refuses(lambda: ground.workspace.write("a/b.txt/c", b"x")) == "a/b.txt is not a folder"
    assert ground.refuses(lambda: ground.workspace.read("a")) == "a is a folder; list it instead"


def test_a_write_that_expects_other_contents_changes_nothing(ground: Ground) -> None:
    ground.workspace.write("a.txt", b"one")
    told = ground.refuses(lambda: ground.workspace.write("a.txt", b"two", before=b"zero"))
    assert told == "a.txt has been changed by another program; read it again"
    ground.workspace.write("a.txt", b"two", before=b"one")
    assert ground.workspace.read("a.txt") == b"two"
    assert os.listdir(ground.root) == ["a.txt"]


def test_what_is_too_long_is_refused_both_ways(ground: Ground) -> None:
    with (ground.root / "huge").open("wb") as file:
        file.truncate(60 << 20)
    assert "read it in parts" in ground.refuses(lambda: ground.workspace.read("huge"))
    assert ground.refuses(lambda: ground.workspace.write("a", bytes((10 << 20) + 1))) == (
        "10,485,761 bytes are too many for one file; the limit is 10 MiB"
    )


def test_a_workspace_folder_that_was_removed_is_reported(ground: Ground) -> None:
    ground.root.rmdir()
    told = f"there is no folder {ground.root} to work in: it was moved or deleted. Put the folder back, or"
    for act in (ground.workspace.read, ground.workspace.list, ground.workspace.walk):
        with pytest.raises(Refused) as refused:
            act("a")
        assert str(refused.value).startswith(told)
    with pytest.raises(Refused, match="there is no folder"):
        ground.workspace.write("a", b"x")
    with pytest.raises(Refused, match="there is no folder"):
        open_local(ground.root)


def test_names_that_are_not_text_are_escaped_and_can_be_used_in_that_form(ground: Ground) -> None:
    with open(os.fsencode(ground.root) + b"/caf\xe9.txt", "wb") as file:
        file.write(b"hi")
    ground.workspace.write("two\nlines", b"ho")
    assert ground.workspace.list(".") == FileListing(
        [WorkspaceItem("caf\\xe9.txt", "file", 2), WorkspaceItem("two\\x0alines", "file", 2)]
    )
    assert [ground.workspace.read(path) for path in ("caf\\xe9.txt", "two\\x0alines")] == [b"hi", b"ho"]
    ground.workspace.write("caf\\xe9.txt", b"there")
    assert os.listdir(os.fsencode(ground.root)).count(b"caf\xe9.txt") == 1
    assert ground.workspace.read("caf\\xe9.txt") == b"there"


def test_a_walk_skips_some_folders_and_does_not_follow_links(ground: Ground) -> None:
    for path in ("src/a.py", ".git/config", "web/node_modules/x.js", "src/__pycache__/a.pyc", "z.txt"):
        ground.workspace.write(path, b"12")
    (ground.root / "src/again").symlink_to("..")
    (ground.root / "out").symlink_to(ground.outside)
    assert ground.workspace.walk(".") == FileListing(
        [WorkspaceItem("src/a.py", "file", 2), WorkspaceItem("z.txt", "file", 2)]
    )
    assert ground.workspace.walk("src/a.py") == FileListing([WorkspaceItem("src/a.py", "file", 2)])


def test_a_walk_that_is_too_deep_says_that_it_is_cut(ground: Ground) -> None:
    ground.workspace.write("d/" * 50 + "x", b"")
    ground.workspace.write("d/y", b"")
    assert ground.workspace.walk(".") == FileListing([WorkspaceItem("d/y", "file", 0)], cut=True)
    assert ground.refuses(lambda: ground.workspace.write("e/" * 70 + "x", b"")).endswith("the limit is 64 folders")


def test_a_walk_over_too_many_files_says_that_it_is_cut(ground: Ground) -> None:
    for number in range(9):
        ground.workspace.write(f"{number}/x", b"")
    assert LocalWorkspace(str(ground.root), max_items=5).walk(".") == FileListing(
        [WorkspaceItem("0/x", "file", 0), WorkspaceItem("1/x", "file", 0)], cut=True
    )


def test_no_descriptor_stays_open(ground: Ground) -> None:
    ground.workspace.write("a/b/c.txt", b"")
    (ground.root / "out").symlink_to(ground.outside)
    before = len(os.listdir("/proc/self/fd"))
    for path in ("a/b/c.txt", "a", "nothing", "out", "../x", "a/b/c.txt/d"):
        for act in (ground.workspace.read, ground.workspace.list, ground.workspace.walk):
            with suppress(Refused):
                act(path)
    assert len(os.listdir("/proc/self/fd")) == before
