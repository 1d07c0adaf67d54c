"""Git repositories in a workspace: what git obeys for the person later stays as it is, and git itself works."""

import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from hypothesis import settings
from msgspec.structs import replace

from outrider.core.errors import Refused
from outrider.workspaces.git_identity import read_identity
from outrider.workspaces.git_protection import (
    KnownRepositories,
    MissingPath,
    Placeholders,
    ProtectedFiles,
    Repository,
    find_repositories,
    missing_paths,
    parse_paths,
    protected_paths,
    remove_redirections,
)
from outrider.workspaces.held_paths import hold_path
from outrider.workspaces.local import LocalWorkspace
from outrider.workspaces.sandbox import BubblewrapSandbox
from tests.support.outer import held, require_bubblewrap, start

pytestmark = [pytest.mark.promise("S7"), pytest.mark.needs("git")]
WHO = {
    "GIT_AUTHOR_NAME": "Ann",
    "GIT_AUTHOR_EMAIL": "ann@example.com",
    "GIT_COMMITTER_NAME": "Ann",
    "GIT_COMMITTER_EMAIL": "ann@example.com",
}


def git(folder: Path, *words: str) -> str:
    environ = {"PATH": os.defpath, "HOME": str(folder), "GIT_CONFIG_GLOBAL": "/dev/null", **WHO}
    ran = subprocess.run(["git", *words], cwd=folder, env=environ, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A workspace that is a repository with one commit."""
    made = tmp_path / "workspace"
    made.mkdir()
    git(made, "init", "-q", "-b", "main")
    (made / "a.txt").write_text("one\n")
    git(made, "add", ".")
    git(made, "commit", "-qm", "first")
    return made


@pytest.fixture
def sandbox() -> BubblewrapSandbox:
    return require_bubblewrap()


@contextmanager
def open_folder(folder: Path) -> Generator[int]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def protected(folder: Path) -> tuple[str, ...]:
    with open_folder(folder) as root:
        return protected_paths(root)


def run(sandbox: BubblewrapSandbox, folder: Path, script: str, lift: Sequence[str] = ()) -> tuple[int, str]:
    paths = [path for path in protected(folder) if path not in lift]
    with held(folder) as visible:
        wrapped = sandbox.wrap(["/bin/sh", "-c", script], replace(visible, protected=tuple(paths)), WHO)
        with start(wrapped) as process:
            output, _ = process.communicate(timeout=90)
    return process.returncode, output


def fingerprint(folder: Path, names: Sequence[str] = (".git/config", ".git/hooks")) -> dict[str, bytes]:
    """All that git would obey later."""
    paths = [folder / name for name in names]
    files = [file for path in paths for file in ([path] if path.is_file() else sorted(path.rglob("*")))]
    return {str(file): file.read_bytes() for file in files if file.is_file()}


class TestWhatIsFound:
    def test_a_repository_and_those_in_folders_below(self, folder: Path) -> None:
        (folder / "libs" / "deep").mkdir(parents=True)
        git(folder / "libs" / "deep", "init", "-q")
        git(folder, "init", "-q", "--bare", "mirror.git")
        shutil.copytree(folder / ".git", folder / "node_modules" / "x" / ".git")
        (folder / "link").symlink_to(folder / "libs")
        with open_folder(folder) as root:
            assert find_repositories(root) == (
                Repository(".git", ""),
                Repository("mirror.git"),
                Repository("libs/deep/.git", "libs/deep"),
            )
            assert protected_paths(root) == (
                ".git/config",
                ".git/hooks",
                "mirror.git/config",
                "mirror.git/hooks",
                "libs/deep/.git/config",
                "libs/deep/.git/hooks",
            )

    def test_submodules_linked_work_trees_and_a_git_file(self, folder: Path, tmp_path: Path) -> None:
        other = tmp_path / "other"
        other.mkdir()
        git(other, "init", "-q", "-b", "main")
        git(other, "commit", "-qm", "x", "--allow-empty")
        git(folder, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(other), "libs/part")
        git(folder, "worktree", "add", "-q", str(folder / "side"))
        git(folder, "config", "extensions.worktreeConfig", "true")
        module = ".git/modules/libs/part"
        assert set(protected(folder)) == {
            *(".git/config", ".git/hooks", ".git/config.worktree"),
            *(f".git/worktrees/side/{name}" for name in ("commondir", "gitdir", "config.worktree")),
            *(f"{module}/config", f"{module}/hooks"),
            *("libs/part/.git", "side/.git"),
        }
        assert git(folder, "status", "--short", "--ignore-submodules=none").splitlines()[-1].endswith("side/")

    def test_hooks_and_settings_that_the_settings_name(self, folder: Path, tmp_path: Path) -> None:
        (folder / ".husky").mkdir()
        (folder / "shared.ini").write_text('[include]\n\tpath = "more.ini"\n')
        (folder / "more.ini").write_text("")
        (tmp_path / "outside.ini").write_text("")
        git(folder, "config", "core.hooksPath", ".husky")
        git(folder, "config", "include.path", "../shared.ini")
        git(folder, "config", "--add", "include.path", str(tmp_path / "outside.ini"))
        assert set(protected(folder)) == {".git/config", ".git/hooks", ".husky", "shared.ini", "more.ini"}
        assert parse_paths('[core] hooksPath = "x y"\n[includeIf "gitdir:~/a/"]\npath = /b\n[a]\npath = c') == [
            ("hooks", "x y"),
            ("include", "/b"),
        ]

    def test_comments_quotes_and_escapes_are_read_as_git_reads_them(self) -> None:
        text = '[core]\nhooksPath = "a \\"b#" # why\n[include]\npath = c\\\\d ; more\n'
        assert parse_paths(text) == [("hooks", 'a "b#'), ("include", "c\\d")]

    def test_hooks_and_settings_in_folders_whose_names_begin_with_dots(self, folder: Path) -> None:
        (folder / ".husky" / "_").mkdir(parents=True)
        (folder / "..shared").mkdir()
        (folder / "..shared" / "git.ini").write_text("")
        (folder / ".config.ini").write_text("")
        git(folder, "config", "core.hooksPath", ".husky/_")
        git(folder, "config", "include.path", "../..shared/git.ini")
        git(folder, "config", "--add", "include.path", "../.config.ini")
        named = (".husky/_", "..shared/git.ini", ".config.ini")
        assert set(protected(folder)) == {".git/config", ".git/hooks", *named}
        workspace = LocalWorkspace(str(folder), protection=ProtectedFiles(KnownRepositories(), "s1"))
        assert [workspace.write_need(each) for each in (*named, ".husky/_/pre-commit")] == [
            f"write:{folder}/{each}" for each in (*named, ".husky/_")
        ]

    def test_settings_and_hooks_that_are_named_and_do_not_exist_yet(self, folder: Path, tmp_path: Path) -> None:
        git(folder, "config", "include.path", "../conf/shared.ini")
        git(folder, "config", "includeIf.onbranch:main.path", "more.ini")
        git(folder, "config", "core.hooksPath", ".husky/_")
        git(folder, "config", "--add", "include.path", str(tmp_path / "outside.ini"))
        wanted = (
            MissingPath("conf/shared.ini", is_folder=False),
            MissingPath(".git/more.ini", is_folder=False),
            MissingPath(".husky/_", is_folder=True),
        )
        before = sorted(folder.rglob("*"))
        with open_folder(folder) as root:
            repositories = find_repositories(root)
            assert set(missing_paths(root, repositories)) == set(wanted)
            placeholders = Placeholders()
            placeholders.create("t1", root, wanted)
            placeholders.create("t2", root, missing_paths(root, repositories))
            assert {".husky/_", "conf/shared.ini", ".git/more.ini"} < set(protected_paths(root))
            placeholders.remove("t1", root)
            assert {".husky/_", "conf/shared.ini", ".git/more.ini"} < set(protected_paths(root))
            placeholders.remove("t2", root)
        assert sorted(folder.rglob("*")) == before

    def test_a_placeholder_in_which_a_person_wrote_stays(self, folder: Path) -> None:
        git(folder, "config", "include.path", "../shared.ini")
        with open_folder(folder) as root:
            placeholders = Placeholders()
            placeholders.create("t1", root, missing_paths(root, find_repositories(root)))
            (folder / "shared.ini").write_text("[user]\n\tname = Ann\n")
            placeholders.remove("t1", root)
        assert git(folder, "config", "user.name") == "Ann\n"

    def test_a_link_to_a_git_folder_in_the_workspace(self, folder: Path) -> None:
        (folder / ".git").rename(folder / "real")
        (folder / ".git").symlink_to("real")
        with open_folder(folder) as root:
            found = find_repositories(root)
        assert found == (Repository(".git", "", "real"), Repository("real"))
        assert protected(folder) == ("real/config", "real/hooks")
        workspace = LocalWorkspace(str(folder), protection=ProtectedFiles(KnownRepositories(), "s1"))
        assert [bool(workspace.write_need(f".git/{name}")) for name in ("config", "commondir", "hooks/x")] == [True] * 3

    def test_missing_settings_and_hooks_are_created_and_change_nothing(self, folder: Path) -> None:
        before = git(folder, "log", "--format=%H")
        shutil.rmtree(folder / ".git" / "hooks")
        (folder / ".git" / "config").unlink()
        assert protected(folder) == (".git/config", ".git/hooks")
        assert (git(folder, "log", "--format=%H"), os.listdir(folder / ".git" / "hooks")) == (before, [])

    def test_the_walk_follows_no_link_and_ends(self, folder: Path, tmp_path: Path) -> None:
        outside = tmp_path / "outside"
        outside.mkdir()
        git(outside, "init", "-q")
        (folder / "loop").symlink_to(".")
        (folder / "out").symlink_to(outside)
        assert protected(folder) == (".git/config", ".git/hooks")


HOSTILE = [
    "git config core.fsmonitor ./evil",
    "git config --file .git/config alias.st '!./evil'",
    "echo '[core] fsmonitor = ./evil' >>.git/config",
    "rm -f .git/config; echo '[core] pager = ./evil' >.git/config",
    "mv .git/config .git/old; echo evil >.git/config",
    "ln -sf ../evil .git/config",
    "printf evil | dd of=.git/config conv=notrunc",
    "truncate -s 0 .git/config",
    "git remote add origin ext::./evil",
    "echo ./evil >.git/hooks/pre-commit",
    "cp evil .git/hooks/post-checkout; chmod +x .git/hooks/post-checkout",
    "mv .git/hooks .git/old; mkdir .git/hooks; cp evil .git/hooks/pre-commit",
    "rm -rf .git/hooks; mkdir .git/hooks && cp evil .git/hooks/pre-commit",
    "ln -sfn .. .git/hooks",
    "chmod -x .git/hooks; chmod 777 .git/hooks",
    "mv .git git; cp -r git .git; echo '[core] pager = ./evil' >>.git/config",
    "rm -rf .git; git init -q; git config core.pager ./evil",
    "mkdir new; cp -r .git new/.git; mv .git away && mv new/.git .git",
    "mount -o remount,rw .git/config; umount .git/config; echo x >>.git/config",
    "touch .git/hooks/pre-push; install -m 755 evil .git/hooks/pre-push",
    "sed -i 's/bare = false/bare = true/' .git/config",
    "python3 -c \"import os; os.rename('.git', 'x')\"",
    "python3 -c \"import os; os.open('.git/config', os.O_WRONLY | os.O_TRUNC)\"",
    "for fd in /proc/self/fd/*; do echo evil >$fd/config; done",
    "cd /proc/self/cwd/.git && echo evil >>config",
]


RACE_TRIES = 20 * settings().max_examples
"""2,000 in the checks, 40,000 in the long variant."""
SWAPPER = """
import os, sys
path, target = sys.argv[1:]
while True:
    os.rename(path, path + "-away")
    os.symlink(target, path)
    os.unlink(path)
    os.rename(path + "-away", path)
"""


class TestCommands:
    @pytest.mark.parametrize("script", HOSTILE)
    def test_no_command_changes_what_git_obeys_later(
        self, sandbox: BubblewrapSandbox, folder: Path, script: str
    ) -> None:
        (folder / "evil").write_text("#!/bin/sh\ntouch pwned\n")
        (folder / "evil").chmod(0o755)
        before = fingerprint(folder)
        run(sandbox, folder, f"({script}) 2>&1; true")
        assert fingerprint(folder) == before
        subprocess.run(["git", "status"], cwd=folder, env={"PATH": os.defpath}, capture_output=True, check=False)
        assert not (folder / "pwned").exists()

    def test_hooks_in_a_folder_whose_name_begins_with_a_dot_stay(
        self, sandbox: BubblewrapSandbox, folder: Path
    ) -> None:
        (folder / ".husky" / "_").mkdir(parents=True)
        git(folder, "config", "core.hooksPath", ".husky/_")
        script = "echo evil >.husky/_/pre-commit; rm -rf .husky; mv .husky old; touch .husky/notes"
        run(sandbox, folder, f"({script}) 2>&1; true")
        assert (os.listdir(folder / ".husky" / "_"), (folder / ".husky" / "notes").exists()) == ([], True)

    def test_the_settings_of_work_trees_cannot_be_created(self, sandbox: BubblewrapSandbox, folder: Path) -> None:
        git(folder, "worktree", "add", "-q", str(folder / "side"))
        git(folder, "config", "extensions.worktreeConfig", "true")
        files = (".git/config.worktree", ".git/worktrees/side/config.worktree")
        run(sandbox, folder, "; ".join(f"rm -f {file}; echo '[alias] st = !touch pwned' >{file}" for file in files))
        assert [(folder / file).read_text() for file in files] == ["", ""]

    def test_a_nested_repository_and_the_folders_above_it_stay_in_place(
        self, sandbox: BubblewrapSandbox, folder: Path
    ) -> None:
        inner = folder / "libs" / "part"
        inner.mkdir(parents=True)
        git(inner, "init", "-q")
        names = protected(folder)
        before = fingerprint(folder, names)
        script = "mv libs other; mv libs/part x; rm -rf libs; mkdir -p libs/part/.git; echo evil >libs/part/.git/config"
        _, output = run(sandbox, folder, f"({script}) 2>&1; touch libs/part/file libs/other")
        assert (fingerprint(folder, names), (inner / "file").exists()) == (before, True), output

    def test_git_works(self, sandbox: BubblewrapSandbox, folder: Path) -> None:
        (folder / ".git" / "hooks" / "pre-commit").write_text("#!/bin/sh\necho hook ran >>hook.log\n")
        (folder / ".git" / "hooks" / "pre-commit").chmod(0o755)
        script = """
        set -e
        echo two >b.txt; git add b.txt; git commit -qm second
        git checkout -q -b topic; echo three >a.txt; git commit -qam third
        git checkout -q main; echo four >c.txt; git add c.txt; git commit -qm fourth
        git merge -q topic -m merged
        git tag v1; git branch other; git branch -D -q other 2>/dev/null
        echo five >>c.txt; git stash -q; git stash pop -q; git commit -qam fifth
        git checkout -q topic; echo six >d.txt; git add d.txt; git commit -qm sixth; git rebase -q main
        git checkout -q -b picked main; git cherry-pick topic >/dev/null; git revert --no-edit HEAD >/dev/null
        git reset -q --hard main; git gc -q; git fsck >/dev/null 2>&1
        git bisect start >/dev/null; git bisect reset >/dev/null 2>&1; git worktree add -q side main~1
        git init -q own; git -C own config user.name Bob; git clone -q . copy
        git log --format=%s -n 1 main; cat hook.log | sort -u
        """
        assert run(sandbox, folder, script) == (0, "fifth\nhook ran\n")
        assert git(folder, "log", "--format=%s", "main").splitlines()[0] == "fifth"

    def test_what_is_allowed_can_be_changed(self, sandbox: BubblewrapSandbox, folder: Path) -> None:
        script = "git config user.name Bob && echo x >.git/hooks/x"
        assert run(sandbox, folder, script, lift=(".git/config", ".git/hooks"))[0] == 0
        assert git(folder, "config", "user.name") == "Bob\n"

    def test_a_path_that_is_swapped_before_the_start_is_refused(
        self, sandbox: BubblewrapSandbox, folder: Path, tmp_path: Path
    ) -> None:
        found = protected(folder)
        shutil.rmtree(folder / ".git")
        (folder / ".git").symlink_to(tmp_path)
        before = len(os.listdir("/proc/self/fd"))
        with held(folder) as visible, pytest.raises(Refused, match="changed while the command was started"):
            sandbox.wrap(["true"], replace(visible, protected=found), {})
        assert len(os.listdir("/proc/self/fd")) == before

    def test_a_race_for_a_folder_above_a_repository_never_shows_another_one(
        self, sandbox: BubblewrapSandbox, folder: Path, tmp_path: Path
    ) -> None:
        """A folder with a repository is swapped for a link to the person's, over and over, while commands are built."""
        (folder / "sub").mkdir()
        git(folder / "sub", "init", "-q")
        person = tmp_path / "person"
        person.mkdir()
        git(person, "init", "-q")
        swapper = subprocess.Popen([sys.executable, "-I", "-S", "-c", SWAPPER, str(folder / "sub"), str(person)])
        outcomes: Counter[str] = Counter()
        try:
            with held(folder) as visible:
                for _ in range(RACE_TRIES):
                    found = protected_paths(visible.root.descriptor)
                    try:
                        with closing(sandbox.wrap(["true"], replace(visible, protected=found), {})) as wrapped:
                            paths = [os.readlink(f"/proc/self/fd/{each}") for each in wrapped.descriptors]
                    except Refused:
                        outcomes["refused"] += 1
                        continue
                    outcomes["outside" if any(str(person) in path for path in paths) else "inside"] += 1
        finally:
            swapper.kill()
            swapper.wait()
        assert (outcomes["outside"], outcomes.total(), outcomes["inside"] > 0) == (0, RACE_TRIES, True)
        assert sorted(os.listdir(person)) == [".git"]

    def test_a_redirection_is_removed(self, sandbox: BubblewrapSandbox, folder: Path) -> None:
        script = "mkdir -p evil; cp -r .git/objects .git/refs evil; echo '[alias] st = !touch pwned' >evil/config"
        run(sandbox, folder, f"{script}; echo ../evil >.git/commondir; touch .git/gitdir")
        with open_folder(folder) as root:
            assert remove_redirections(root, protected_paths(root)) == (".git/commondir",)
            assert remove_redirections(root, protected_paths(root)) == ()
        git(folder, "status")


class TestFileTools:
    @pytest.fixture
    def workspace(self, folder: Path) -> LocalWorkspace:
        return LocalWorkspace(str(folder), protection=ProtectedFiles(KnownRepositories(), "s1"))

    @pytest.mark.parametrize(
        "path",
        [
            *(".git/config", ".git/hooks/pre-commit", ".git/hooks/new/deep", ".git/commondir", "./x/../.git/config"),
            *(".GIT/config", "link/config", "to-config", ".git/modules/x/config"),
        ],
    )
    def test_writing_in_a_git_folder_needs_a_permission(
        self, workspace: LocalWorkspace, folder: Path, path: str
    ) -> None:
        (folder / "x").mkdir()
        (folder / "link").symlink_to(".git")
        (folder / "to-config").symlink_to(".git/config")
        need = f"write:{folder}/.git"
        before = fingerprint(folder)
        assert workspace.write_need(path) == need
        with pytest.raises(Refused, match="a person must allow"):
            workspace.write(path, b"evil")
        assert fingerprint(folder) == before
        workspace.write(path, b"allowed", granted=(need,))

    def test_other_files_and_repositories_of_commands_need_none(self, workspace: LocalWorkspace, folder: Path) -> None:
        assert [workspace.write_need(path) for path in ("a.txt", ".gitignore", "x.git", ".github/ci.yml")] == [""] * 4
        git(folder, "init", "-q", "own")
        assert workspace.write_need("own/.git/config") == ""
        workspace.write("own/.git/config", b"[user]\n\tname = Bob\n")

    def test_settings_and_hooks_that_do_not_exist_yet_are_asked_for(self, folder: Path) -> None:
        git(folder, "config", "core.hooksPath", "tools/hooks")
        git(folder, "config", "include.path", "../conf/shared.ini")
        workspace = LocalWorkspace(str(folder), protection=ProtectedFiles(KnownRepositories(), "s1"))
        assert [workspace.write_need(path) for path in ("tools/hooks/pre-commit", "conf/shared.ini", "conf/x")] == [
            *(f"write:{folder}/{path}" for path in ("tools/hooks", "conf/shared.ini")),
            "",
        ]
        with pytest.raises(Refused, match="a person must allow"):
            workspace.write("conf/shared.ini", b"[core]\n\tpager = ./evil\n")

    def test_hooks_outside_the_git_folder_are_asked_for_by_their_path(self, folder: Path) -> None:
        (folder / ".husky").mkdir()
        git(folder, "config", "core.hooksPath", ".husky")
        workspace = LocalWorkspace(str(folder), protection=ProtectedFiles(KnownRepositories(), "s1"))
        assert workspace.write_need(".husky/pre-commit") == f"write:{folder}/.husky"


def test_repositories_are_found_once_for_a_session(folder: Path) -> None:
    known = KnownRepositories(max_sessions=2)
    with closing(hold_path(str(folder))) as root:
        first: Callable[[str], int] = lambda session: len(known.of_session(session, root.descriptor))  # noqa: E731
        assert first("s1") == 1
        git(folder, "init", "-q", "own")
        assert (first("s1"), first("s2"), first("s3"), first("s1")) == (1, 2, 2, 2)


class TestTheIdentityOfThePerson:
    def test_name_and_address_are_read_and_nothing_else(self, tmp_path: Path) -> None:
        (tmp_path / "more.ini").write_text("[user]\n\temail = ann@example.com\n\tsigningKey = secret\n")
        settings = (
            '[user]\n\tname = Old\n\tname = "A \\"n\\\\n\\""\n[include]\n\tpath = more.ini\n[core]\n\tpager = x\n'
        )
        (tmp_path / ".gitconfig").write_text(settings)
        environ = {"PATH": os.defpath, "HOME": str(tmp_path)}
        text = read_identity(environ)
        (tmp_path / ".gitconfig").write_text(text)
        assert (text.count("\n"), read_identity(environ)) == (3, text)
        listed = subprocess.run(["git", "config", "--global", "-l"], env=environ, capture_output=True, timeout=60)
        assert listed.stdout == b'user.name=A "n\\n"\nuser.email=ann@example.com\n'

    @pytest.mark.parametrize("settings", [None, "", "[user]\n\tname =\n", "[broken"])
    def test_without_them_there_are_no_settings(self, tmp_path: Path, settings: str | None) -> None:
        if settings is not None:
            (tmp_path / ".gitconfig").write_text(settings)
        assert read_identity({"PATH": os.defpath, "HOME": str(tmp_path)}) == ""
        assert read_identity({"PATH": "/nowhere", "HOME": str(tmp_path)}) == ""
