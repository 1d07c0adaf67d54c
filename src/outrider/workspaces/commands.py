"""Commands of tasks on this machine, each with its own folder, sandboxed where that is possible."""

import os
import re
import signal
import stat
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import cached_property, partial
from hashlib import blake2b
from pathlib import Path
from typing import Literal

import anyio.to_thread
from msgspec import Struct
from msgspec.structs import replace

from outrider.config.environment import child_environment
from outrider.config.redact import Redactor
from outrider.core.approvals import HOST, NETWORK
from outrider.core.errors import Refused, Unavailable
from outrider.core.ports import CommandEnd, UsageCheck
from outrider.core.store_port import Session
from outrider.core.tasks import ProcessIdentity, Task, TaskSpec
from outrider.workspaces import process_end, supervisor, task_folder
from outrider.workspaces.command_usage import RunningCommand, UsageLimits, UsageMonitor, require_free_space
from outrider.workspaces.git_identity import read_identity
from outrider.workspaces.git_protection import (
    KnownRepositories,
    Placeholders,
    Repository,
    git_links,
    is_protected,
    missing_paths,
    outside_git_folders,
    protected_paths,
    remove_redirections,
    restore_links,
)
from outrider.workspaces.held_paths import (
    HeldPath,
    HeldPaths,
    HiddenFiles,
    hold_path,
    hold_workspace,
    identity_of_status,
    is_within,
)
from outrider.workspaces.program_files import ProgramFiles
from outrider.workspaces.safe_paths import OPEN_FOLDER, open_path
from outrider.workspaces.sandbox.bubblewrap import command_group
from outrider.workspaces.sandbox.port import Sandbox
from outrider.workspaces.sandbox.types import NoSandbox, SandboxedCommand

_FOLDER_REPLACED = re.compile(
    rb"bwrap: (?:Race condition binding dirfd|Can't get type of source|Can't find source path)[^\n]*\n?"
)
"""What bubblewrap says when it finds another folder, or none, where it is about to bind one."""
_MAX_START_ERROR = 10_000
_NOT_RUN = (
    "according to its output, a folder that it may use was moved or replaced while it was starting, and it was not run"
)


class CommandSettings(Struct, frozen=True):
    """Settings for all commands of a home."""

    folder: Path
    """The parent of the tasks' folders."""
    detect: Callable[[], Sandbox | NoSandbox]
    environ: Mapping[str, str]
    """The environment of a command outside any sandbox."""
    max_output: int
    """The most bytes of output of one command."""
    network: bool = False
    read: tuple[str, ...] = ()
    """Folders that every command may read, in addition to the system's."""
    hidden: tuple[str, ...] = ()
    """Outrider's own files and folders, which no command may see."""
    program: tuple[str, ...] = ()
    """The folders that Outrider runs from, which no command may change."""
    max_ended_tasks: int = 500
    """Ended tasks whose output is kept."""
    max_ended_bytes: int = 1024**3
    """Bytes of output kept of all ended tasks together."""
    usage: UsageLimits = UsageLimits(cpu=86_400, reserve=512 << 20)
    redactor: Redactor = Redactor(())
    """Replaces secrets wherever output is read. The file itself has what the command wrote."""


class LocalCommands:
    """Starts, watches and ends the commands of a home."""

    def __init__(self, settings: CommandSettings) -> None:
        self._settings = settings
        # The control groups of all homes are in one folder.
        self._home_tag = blake2b(os.fsencode(settings.folder), digest_size=5).hexdigest()
        self._open_tasks: Sequence[str] | None = None
        """The tasks that had not ended at the last `prune`."""
        self.repositories = KnownRepositories()
        self._placeholders = Placeholders()
        self._links: dict[str, Mapping[str, str]] = {}
        """Where links named `.git` led when a task was started, by task."""
        self._usage = UsageMonitor(settings.usage)
        self._program = ProgramFiles(settings.program)

    @cached_property
    def sandbox(self) -> Sandbox | NoSandbox:
        """Detected on first use, which takes a moment. Then control groups that a crash left behind are removed."""
        sandbox = self._settings.detect()
        if not isinstance(sandbox, NoSandbox) and sandbox.cgroups and self._open_tasks is not None:
            alive = [self._group_name(task) for task in self._open_tasks]
            for group in sandbox.cgroups.leftover_tasks(alive):
                if group.startswith(self._home_tag):
                    sandbox.cgroups.clean(group)
        return sandbox

    @cached_property
    def _git_settings(self) -> str:
        """Read when the first command starts, as the settings of the person are then."""
        return read_identity(child_environment(more=("GIT_CONFIG_GLOBAL", "XDG_CONFIG_HOME")))

    def prune(self, alive: Sequence[str]) -> None:
        self._open_tasks = alive
        count = total = 0
        for folder, size in _latest_first(self._settings.folder):
            if folder.name in alive:
                continue
            count, total = count + 1, total + size
            if count > self._settings.max_ended_tasks or total > self._settings.max_ended_bytes:
                process_end.remove_folder(folder)

    def start(self, task: Task) -> ProcessIdentity:
        spec, folder = task.spec, self._folder(task)
        argv = ("/bin/sh", "-c", spec.command)
        try:
            with (
                self._hold_paths(task, spec.workdir, spec.grants) as paths,
                closing(self._wrap(task, argv, paths)) as wrapped,
            ):
                if HOST not in spec.grants:
                    require_free_space(paths.root.descriptor, self._settings.usage.reserve)
                folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                return supervisor.start_detached(
                    task_folder.CommandSpec(
                        argv=wrapped.argv,
                        folder=folder,
                        cwd=_cwd_of(task, paths),
                        environ=wrapped.environ,
                        stdin=_stdin_of(spec),
                        max_output=self._settings.max_output,
                        rlimits=wrapped.rlimits,
                        descriptors=wrapped.descriptors,
                    )
                )
        except (Refused, Unavailable):
            self._remove_traces(task)
            raise
        except OSError as error:
            self._remove_traces(task)
            raise Unavailable(f"the command was not started: {error.strerror}") from error

    def resolve_needs(self, session: Session, needs: Sequence[str]) -> tuple[str, ...]:
        resolved = tuple(dict.fromkeys(map(_resolve_need, needs)))
        with self._hold_paths(session, "", resolved) as paths:
            repositories = self.repositories.of_session(session.id, paths.root.descriptor)
            for need in resolved:
                _require_outside(need, paths.root, repositories)
            if not isinstance(self.sandbox, NoSandbox):
                self._confine(("true",), paths).close()
        return resolved

    def outside_git_folders(self, task: Task) -> Mapping[str, str]:
        try:
            with closing(hold_workspace(task.workspace, task.identity)) as root:
                return outside_git_folders(root, self.repositories.of_session(task.session, root.descriptor))
        except Refused:  # the workspace is gone
            return {}

    def adopt(self, task: Task) -> ProcessIdentity | None:
        return supervisor.adopt(self._folder(task))

    def boot_time(self) -> int:
        since = time.clock_gettime(time.CLOCK_BOOTTIME if sys.platform == "linux" else time.CLOCK_MONOTONIC)
        return int((time.time() - since) * 1000)

    def has_ended(self, task: Task) -> bool:
        return task_folder.poll_exit(self._folder(task), _process_of(task)) is not None

    async def wait_for_end(self, task: Task) -> CommandEnd:
        end = await process_end.wait_for_exit(self._folder(task), _process_of(task))
        return await self._finish(task, end)

    async def kill(self, task: Task) -> CommandEnd:
        end = await process_end.kill(self._folder(task), _process_of(task))
        return await self._finish(task, end)

    def check_usage(self, tasks: Sequence[Task]) -> UsageCheck:
        commands = [
            RunningCommand(
                task.id,
                task.workspace,
                first_pid=partial(process_end.first_pid, self._folder(task)),
                group_cpu=partial(self._group_cpu, task),
            )
            for task in tasks
            if HOST not in task.spec.grants
        ]
        exceeded, seconds = self._usage.check(commands)
        return UsageCheck(exceeded, seconds)

    def _group_cpu(self, task: Task) -> float | None:
        cgroups = None if isinstance(self.sandbox, NoSandbox) else self.sandbox.cgroups
        return cgroups.cpu_seconds(self._group_name(task.id)) if cgroups else None

    def interrupt(self, task: Task) -> None:
        """Send SIGINT to the command itself: sent to the sandbox, it would end everything at once."""
        first = process_end.first_pid(self._folder(task))
        group = command_group(first) if first and HOST not in task.spec.grants else None
        if group:
            os.killpg(group, signal.SIGINT)
        else:
            process_end.interrupt(self._folder(task), _process_of(task))

    def output_file(self, task: Task) -> str:
        return str(self._folder(task) / "output")

    def size(self, task: Task) -> int:
        return task_folder.output_size(self._folder(task))

    def read(self, task: Task, start: int, max_bytes: int) -> bytes:
        folder, redactor = self._folder(task), self._settings.redactor
        if start < 0:
            start = max(0, task_folder.output_size(folder) + start)
        # With the bytes around it, so that a secret at the edge of the part is found too.
        first = max(0, start - redactor.margin)
        wanted = start - first + max_bytes + redactor.margin
        content = redactor.mask(task_folder.read_output(folder, first, wanted))
        unfinished = redactor.unfinished_bytes(content) if task.is_open and len(content) < wanted else 0
        if unfinished and task_folder.poll_exit(folder, task.process):
            unfinished = 0
        end = len(content) - unfinished
        return content[start - first : min(end, start - first + max_bytes)]

    def idle_seconds(self, task: Task) -> float:
        return time.time() - self.output_time(task)

    def output_time(self, task: Task) -> float:
        return task_folder.last_output_time(self._folder(task))

    def input_time(self, task: Task) -> float:
        return task_folder.last_input_time(self._folder(task))

    def write(self, task: Task, content: bytes, *, close: bool = False) -> None:
        if not task.spec.keeps_stdin_open:
            raise Refused("its stdin is closed; start it with interactive=true to write to it")
        folder = self._folder(task)
        if content:
            task_folder.write_stdin(folder, content)
        if close:
            task_folder.close_stdin(folder)

    def save_number(self, task: Task, name: str, value: int) -> None:
        path = self._folder(task) / name
        # Without fsync: a crash of the machine ends the task too.
        path.with_suffix(".new").write_text(str(value))
        os.replace(path.with_suffix(".new"), path)

    def load_number(self, task: Task, name: str) -> int:
        try:
            return int((self._folder(task) / name).read_text())
        except (FileNotFoundError, ValueError):  # not saved, or emptied by a crash of the machine
            return 0

    def _folder(self, task: Task) -> Path:
        return self._settings.folder / task.id

    def _group_name(self, task: str) -> str:
        return f"{self._home_tag}-{task}"

    def _require_sandbox(self) -> Sandbox:
        if isinstance(self.sandbox, NoSandbox):
            why = self.sandbox.why
            raise Refused(f"there is no sandbox here ({why}), so a person has to allow every command")
        return self.sandbox

    @contextmanager
    def _hold_paths(self, of: Task | Session, workdir: str, grants: Sequence[str]) -> Generator[HeldPaths]:
        """Open all that a command may use, until the context ends. Raises Refused when one of these has changed."""
        parts = [grant.partition(":") for grant in grants]
        write = [path for kind, _, path in parts if kind == "write"]
        read = [*self._settings.read, *(path for kind, _, path in parts if kind == "read")]
        with ExitStack() as stack:
            session = of.session if isinstance(of, Task) else of.id
            root = stack.enter_context(closing(hold_workspace(of.workspace, of.identity, session)))
            repositories = self.repositories.of_session(session, root.descriptor)
            if isinstance(of, Task) and HOST not in grants and (links := git_links(root.descriptor, repositories)):
                self._links[of.id] = links
            if isinstance(of, Task) and HOST not in grants and self._require_sandbox().kind == "bubblewrap":
                missing = missing_paths(root.descriptor, repositories)
                wanted = [each for each in missing if not _is_granted(f"{root.path}/{each.path}", write)]
                self._placeholders.create(of.id, root.descriptor, wanted)
            protected = protected_paths(root.descriptor, repositories)
            remove_redirections(root.descriptor, protected)
            yield HeldPaths(
                root=root,
                cwd=stack.enter_context(closing(_hold_workdir(root, workdir))),
                write=tuple(stack.enter_context(closing(_hold_granted(path))) for path in write),
                read=tuple(stack.enter_context(closing(_hold_granted(path))) for path in read),
                hidden=HiddenFiles(self._settings.hidden).tops(),
                protected=tuple(each for each in protected if not _is_granted(f"{root.path}/{each}", write)),
                network=self._settings.network or NETWORK in grants,
            )

    def _wrap(self, task: Task, argv: Sequence[str], paths: HeldPaths) -> SandboxedCommand:
        if HOST in task.spec.grants:
            return SandboxedCommand(tuple(argv), self._settings.environ)
        wrapped = self._confine(argv, paths)
        try:
            return replace(wrapped, argv=(*self._cgroup_argv(task), *wrapped.argv))
        except (Refused, Unavailable):
            wrapped.close()
            raise

    def _confine(self, argv: Sequence[str], paths: HeldPaths) -> SandboxedCommand:
        """The command in the sandbox. Raises Refused when it could change what confines it."""
        sandbox = self._require_sandbox()
        if sandbox.kind != "off":
            HiddenFiles(self._settings.hidden).check_contents((paths.root, *paths.write), paths.read)
            for held in paths.write:
                if not is_within(held.path, paths.root.path):
                    self._program.check_writable(held)
            paths = replace(paths, program=self._program.below(paths.root))
        return sandbox.wrap(argv, paths, {}, self._git_settings)

    def _cgroup_argv(self, task: Task) -> tuple[str, ...]:
        sandbox = self._require_sandbox()
        return sandbox.cgroups.prepare(self._group_name(task.id), sandbox.limits) if sandbox.cgroups else ()

    async def _finish(self, task: Task, end: task_folder.Exit) -> CommandEnd:
        # The kernel may take a while to remove a group; do not block the event loop.
        ran_out = await anyio.to_thread.run_sync(self._remove_cgroups, task)
        notes = [
            await anyio.to_thread.run_sync(self._explain_failed_start, task, end),
            await anyio.to_thread.run_sync(self._restore_repositories, task),
        ]
        reason = "memory" if ran_out and end.reason in ("exit", "signal") and end.code else end.reason
        return CommandEnd(end.code, reason, end.signal, end.at, "; ".join(filter(None, notes)))

    def _explain_failed_start(self, task: Task, end: task_folder.Exit) -> str:
        """What an error of bubblewrap means that is all that this command has as output."""
        if HOST in task.spec.grants or (end.reason, end.code) != ("exit", 1):
            return ""
        output = task_folder.read_output(self._folder(task), 0, _MAX_START_ERROR)
        return _NOT_RUN if _FOLDER_REPLACED.fullmatch(output) else ""

    def _remove_traces(self, task: Task) -> None:
        """Remove what was prepared for a command that was not started."""
        self._remove_cgroups(task)
        self._links.pop(task.id, None)
        with suppress(Refused), closing(hold_workspace(task.workspace, task.identity)) as root:
            self._placeholders.remove(task.id, root.descriptor)

    def _restore_repositories(self, task: Task) -> str:
        """Remove what would make git obey other settings than the protected ones; what was done, for people."""
        if HOST in task.spec.grants:
            return ""
        links = self._links.pop(task.id, {})
        try:
            with closing(hold_workspace(task.workspace, task.identity)) as root:
                self._placeholders.remove(task.id, root.descriptor)
                repositories = self.repositories.of_session(task.session, root.descriptor)
                restored = restore_links(root.descriptor, links)
                removed = remove_redirections(root.descriptor, protected_paths(root.descriptor, repositories))
        except Refused:  # the workspace is gone
            return ""
        notes = [f"removed {', '.join(removed)}, which would make git obey other settings"] if removed else []
        for git, aside in restored:
            notes.append(f"created the link {git} again" + (f"; what was in its place is {aside} now" if aside else ""))
        return "; ".join(notes)

    def _remove_cgroups(self, task: Task) -> bool:
        """Remove the task's control groups; whether it had run out of memory."""
        if HOST in task.spec.grants or isinstance(self.sandbox, NoSandbox) or not self.sandbox.cgroups:
            return False
        ran_out = self.sandbox.cgroups.ran_out_of_memory(self._group_name(task.id))
        self.sandbox.cgroups.clean(self._group_name(task.id))
        return ran_out


def _hold_workdir(root: HeldPath, workdir: str) -> HeldPath:
    """A folder in the workspace, which may be reached through links. Raises Refused for any other."""
    with open_path(root, workdir) as safe_path:
        folder = os.open(safe_path.name or ".", OPEN_FOLDER, dir_fd=safe_path.folder)
        path = "/".join([root.path.rstrip("/"), *safe_path.names])
        return HeldPath(path, folder, identity_of_status(os.fstat(folder)))


def _hold_granted(path: str) -> HeldPath:
    held = hold_path(path)
    mode = os.fstat(held.descriptor).st_mode
    if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
        held.close()
        raise Refused(f"{path} is neither a folder nor a file; sockets and devices cannot be granted")
    return held


def _resolve_need(need: str) -> str:
    """The need with the path that links lead to now: that is shown, stored and used."""
    kind, mark, path = need.partition(":")
    if not mark:
        return need
    try:
        return f"{kind}:{os.path.realpath(path, strict=True)}"
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise Refused(f"{path} cannot be made visible to a command: {reason}") from error


def _require_outside(need: str, root: HeldPath, repositories: Sequence[Repository]) -> None:
    """Raises Refused for a path that every command may use anyway. Protected ones may be asked for, to write them."""
    kind, mark, path = need.partition(":")
    if not mark or not is_within(path, root.path):
        return
    relative = path[len(root.path) :].strip("/")
    if kind == "write" and is_protected(relative, repositories, protected_paths(root.descriptor, repositories)):
        return
    raise Refused(f"{path} is in the workspace, where a command may read and write anyway; leave this need out")


def _is_granted(path: str, granted: Sequence[str]) -> bool:
    return any(is_within(path, each) for each in granted)


def _cwd_of(task: Task, paths: HeldPaths) -> Path:
    """Where the supervisor starts. A sandboxed command changes to its own folder inside the sandbox."""
    if HOST not in task.spec.grants:
        return Path("/")
    return Path(f"/proc/self/fd/{paths.cwd.descriptor}" if sys.platform == "linux" else paths.cwd.path)


def _process_of(task: Task) -> ProcessIdentity:
    if task.process is None:
        raise Refused(f"task {task.id} has not started")
    return task.process


def _stdin_of(spec: TaskSpec) -> Literal["closed", "open"] | bytes:
    if spec.keeps_stdin_open:
        return "open"
    return "closed" if spec.stdin is None else spec.stdin.encode()


def _latest_first(folder: Path) -> list[tuple[Path, int]]:
    """The folders of tasks, latest output first, with the size of their output."""
    folders: list[tuple[float, Path, int]] = []
    for each in folder.iterdir() if folder.is_dir() else ():
        with suppress(OSError):  # it was removed in the meantime
            output = (each / "output").stat()
            folders.append((output.st_mtime, each, output.st_size))
    return [(each, size) for _, each, size in sorted(folders, reverse=True)]
