"""Starting a command exactly once, and finding out afterwards whether it was."""

import errno
import os
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from outrider.core.errors import Refused, Unavailable
from outrider.workspaces.process.folder import MARKER, Files
from outrider.workspaces.process.identity import mark_of, recorded
from outrider.workspaces.process.spec import Mark, Spec
from outrider.workspaces.process.supervisor import SHELL, supervise

_PRIVATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL
_BUSY = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)


def start(spec: Spec) -> Mark:
    """Start it, detached. Raises Refused when nothing was started, and when this folder was used before.

    Whether the command itself can be found shows in its output, and in its status 127.
    """
    if not spec.argv or spec.argv[0].startswith("-"):
        raise Refused("there is no command to run")
    argv = supervise(spec)
    if not spec.folder.is_absolute():
        raise Refused(f"the folder of a task is named from the root, unlike {spec.folder}")
    spec.folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        spec.folder.mkdir(mode=0o700)
    except FileExistsError:
        raise Refused(f"this task was already started, or given up before it was: {spec.folder}") from None
    try:
        return _start(spec, argv)
    except (OSError, ValueError) as error:
        shutil.rmtree(spec.folder)
        raise _explained(error, spec) from error


def adopt(folder: Path) -> Mark | None:
    """The supervisor of a task whose start was cut short; None when none came so far, and then none ever will.

    After None the folder is spent: a new attempt needs another one. After a crash of the whole machine None proves
    nothing, since the disk may have forgotten; compare `boot`.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    # A file and a folder cannot both have this name: either the supervisor gets it, or we do.
    with suppress(FileExistsError):
        Files(folder).started.mkdir()
    return recorded(folder)


def _start(spec: Spec, argv: Sequence[str]) -> Mark:
    files = Files(spec.folder)
    stdin = _stdin(spec, files)
    reads, writes = os.pipe()
    try:
        _create(files.record, f"pipe pipe:[{os.fstat(reads).st_ino}]\n".encode())
        process = subprocess.Popen(
            argv,
            stdin=stdin,
            stdout=writes,
            stderr=reads,
            cwd=spec.cwd,
            env={**spec.environ, MARKER: str(spec.folder)},
            start_new_session=True,
        )
    finally:
        for descriptor in (stdin, reads, writes):
            os.close(descriptor)
    # It is let go when its end is seen, by whoever looks; this object must not wait for it, nor complain.
    process.returncode = 0
    return mark_of(process.pid)


def _stdin(spec: Spec, files: Files) -> int:
    if isinstance(spec.stdin, bytes):
        _create(files.given, spec.stdin)
        descriptor = os.open(files.given, os.O_RDONLY)
        files.given.unlink()
        return descriptor
    if spec.stdin == "open":
        os.mkfifo(files.stdin, 0o600)
        os.mkfifo(files.hold, 0o600)
    return os.open(os.devnull, os.O_RDONLY)


def _create(path: Path, content: bytes) -> None:
    with open(os.open(path, _PRIVATE, 0o600), "wb") as file:
        file.write(content)


def _explained(error: OSError | ValueError, spec: Spec) -> Refused | Unavailable:
    if isinstance(error, ValueError):
        return Refused(f"this cannot be run: {error}")
    if error.errno == errno.E2BIG:
        return Refused("the command is too long; write it to a file and run that")
    if error.errno in _BUSY:
        return Unavailable(f"the system can start no more processes now: {error.strerror}")
    if not spec.cwd.is_dir():
        return Refused(f"there is no folder {spec.cwd} to run it in")
    return Refused(f"the command was not started: {error.strerror} ({error.filename or SHELL})")
