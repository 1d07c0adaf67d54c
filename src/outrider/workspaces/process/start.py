"""Starting a command exactly once, and finding out afterwards whether it was."""

import errno
import os
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from outrider.core.errors import Refused, Unavailable
from outrider.workspaces.process.folder import TASK_VARIABLE, TaskFiles
from outrider.workspaces.process.identity import identity_of, recorded_supervisor
from outrider.workspaces.process.spec import CommandSpec, ProcessIdentity
from outrider.workspaces.process.supervisor import SHELL, supervisor_argv

_CREATE_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL
_BUSY = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)


def start_detached(spec: CommandSpec) -> ProcessIdentity:
    """Start it, detached. Raises Refused when nothing was started, and when this folder was used before.

    Whether the command itself can be found shows in its output, and in its status 127.
    """
    if not spec.argv or spec.argv[0].startswith("-"):
        raise Refused("there is no command to run")
    argv = supervisor_argv(spec)
    if not spec.folder.is_absolute():
        raise Refused(f"the folder of a task is named from the root, unlike {spec.folder}")
    spec.folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        spec.folder.mkdir(mode=0o700)
    except FileExistsError:
        raise Refused(f"this task was already started, or given up before it was: {spec.folder}") from None
    try:
        return _spawn(spec, argv)
    except (OSError, ValueError) as error:
        shutil.rmtree(spec.folder)
        raise _start_error(error, spec) from error


def adopt(folder: Path) -> ProcessIdentity | None:
    """The supervisor of a task whose start was cut short; None when none came so far, and then none ever will.

    After None the folder is spent: a new attempt needs another one. After a crash of the whole machine None proves
    nothing, since the disk may have forgotten; compare `boot`.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    # A file and a folder cannot both have this name: either the supervisor gets it, or we do.
    with suppress(FileExistsError):
        TaskFiles(folder).started.mkdir()
    return recorded_supervisor(folder)


def _spawn(spec: CommandSpec, argv: Sequence[str]) -> ProcessIdentity:
    files = TaskFiles(spec.folder)
    stdin = _open_stdin(spec, files)
    reads, writes = os.pipe()
    try:
        _create_private(files.record, f"pipe pipe:[{os.fstat(reads).st_ino}]\n".encode())
        process = subprocess.Popen(
            argv,
            stdin=stdin,
            stdout=writes,
            stderr=reads,
            cwd=spec.cwd,
            env={**spec.environ, TASK_VARIABLE: str(spec.folder)},
            start_new_session=True,
        )
    finally:
        for descriptor in (stdin, reads, writes):
            os.close(descriptor)
    # It is let go when its end is seen, by whoever looks; this object must not wait for it, nor complain.
    process.returncode = 0
    return identity_of(process.pid)


def _open_stdin(spec: CommandSpec, files: TaskFiles) -> int:
    if isinstance(spec.stdin, bytes):
        _create_private(files.stdin_text, spec.stdin)
        descriptor = os.open(files.stdin_text, os.O_RDONLY)
        files.stdin_text.unlink()
        return descriptor
    if spec.stdin == "open":
        os.mkfifo(files.stdin, 0o600)
        os.mkfifo(files.hold, 0o600)
    return os.open(os.devnull, os.O_RDONLY)


def _create_private(path: Path, content: bytes) -> None:
    with open(os.open(path, _CREATE_NEW, 0o600), "wb") as file:
        file.write(content)


def _start_error(error: OSError | ValueError, spec: CommandSpec) -> Refused | Unavailable:
    if isinstance(error, ValueError):
        return Refused(f"this cannot be run: {error}")
    if error.errno == errno.E2BIG:
        return Refused("the command is too long; write it to a file and run that")
    if error.errno in _BUSY:
        return Unavailable(f"the system can start no more processes now: {error.strerror}")
    if not spec.cwd.is_dir():
        return Refused(f"there is no folder {spec.cwd} to run it in")
    return Refused(f"the command was not started: {error.strerror} ({error.filename or SHELL})")
