"""The supervisor of a command: a POSIX sh script that runs on when Outrider ends, in whatever way.

A command starts at most once, and afterwards it can be determined whether it did.
"""

import errno
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from outrider.core.errors import Refused, Unavailable
from outrider.core.tasks import ProcessIdentity
from outrider.system.files import write_private
from outrider.system.processes import identity_of
from outrider.workspaces.task_folder import TASK_VARIABLE, CommandSpec, TaskFiles, recorded_supervisor

SHELL = "/bin/sh"
LIMITS: Mapping[str, tuple[int, str, int]] = {
    "as": (resource.RLIMIT_AS, "-v", 1024),
    "core": (resource.RLIMIT_CORE, "-c", 512),
    "cpu": (resource.RLIMIT_CPU, "-t", 1),
    "fsize": (resource.RLIMIT_FSIZE, "-f", 512),
    "nofile": (resource.RLIMIT_NOFILE, "-n", 1),
    "nproc": (resource.RLIMIT_NPROC, "-u", 1),
}
"""The resource limits, with the flag and unit of the shell's `ulimit`."""
_SEARCH_PATH = os.pathsep.join(("/usr/bin", "/bin", "/usr/local/bin", "/run/current-system/sw/bin"))
_NEW_SESSION = """
import os, signal, sys
for number in (signal.SIGPIPE, signal.SIGXFSZ):
    signal.signal(number, signal.SIG_DFL)
if sys.argv[1] == "drop":
    os.environ.pop("LC_CTYPE", None)
os.setsid()
os.execvp(sys.argv[2], sys.argv[2:])
"""
"""A replacement for `setsid` where there is none. It undoes what Python changes for itself."""
_SCRIPT = r"""
exec 3<&2 2>/dev/null
if [ -r /proc/self/stat ]; then
  read -r outrider_self </proc/self/stat
  read -r outrider_boot </proc/sys/kernel/random/boot_id
else
  outrider_self=$$ outrider_boot=
fi
[ -f "$1/record" ] || exit
printf 'supervisor %s\nboot %s\n' "$outrider_self" "$outrider_boot" >>"$1/record" || exit
set -C
: >"$1/started" || exit
set +C
exec 2>>"$1/started"
trap : HUP INT QUIT TERM USR1 USR2 ALRM

{
  exec <&3 3<&-
  ulimit -c 0
  if ! { umask 077 && ulimit -f "$2" && "$3" >"$1/output"; }; then
    exec </dev/null
    echo full >"$1/full"
    while read -r outrider_fact outrider_leader outrider_rest; do
      [ "$outrider_fact" = first ] && break
    done <"$1/record"
    kill -s TERM -- "-$outrider_leader"
    outrider_turn=0
    while [ "$outrider_turn" -lt 40 ] && kill -s 0 -- "-$outrider_leader"; do
      "$4" 0.05
      outrider_turn=$((outrider_turn + 1))
    done
    kill -s KILL -- "-$outrider_leader"
  fi
} >/dev/null 2>&1 &
outrider_copier=$!

outrider_holder=
if [ -p "$1/hold" ]; then
  { exec 4>"$1/stdin" <"$1/hold"; read -r outrider_rest; } >/dev/null 2>&1 3<&- &
  outrider_holder=$!
fi
exec 3<&-

(
  if [ -p "$1/stdin" ]; then exec <"$1/stdin"; fi
  if [ -r /proc/self/stat ]; then
    read -r outrider_self </proc/self/stat
  else
    outrider_self=$("$SHELL" -c 'echo $PPID')
  fi
  echo "first $outrider_self" >>"$1/record"
  [ "$5" ] || unset PWD
  LIMITS
  shift 5
  exec "$@"
) 2>&1
outrider_code=$?

exec >/dev/null 2>&1
[ "$outrider_holder" ] && kill "$outrider_holder"
while kill -s 0 "$outrider_copier"; do wait "$outrider_copier"; done
echo "exit $outrider_code ${BASH_VERSION:+silent}${ZSH_VERSION:+silent}" >>"$1/record"
"""
"""Records its identity, creates `started`, then runs the command to its end and records its status.

fd 1 is the pipe for the output, fd 2 at first its other end. Two processes run beside the command: the copier, bounded
by its own file size limit, whose file only its owner can read; and, while stdin is open, a holder, which keeps stdin
from ending between two writers. The command runs in the foreground, since a shell makes background commands ignore
SIGINT, and in its own session, so that signals to it do not reach the supervisor. The status is recorded after the
copier has read the last byte. Traps, unlike ignored signals, are not inherited. Variables begin with `outrider_`,
since setting a variable of the command's environment here would change it there."""


def supervisor_argv(spec: CommandSpec) -> Sequence[str]:
    """The complete argv. Raises Refused for an unknown limit, and on a system without the basic programs."""
    script = _SCRIPT.replace("LIMITS", "\n  ".join(_ulimit_line(*item) for item in spec.rlimits.items()) or ":")
    keep = "keep" if "PWD" in spec.environ else ""
    blocks = str(_within_hard_limit(resource.RLIMIT_FSIZE, max(spec.max_output, 512)) // 512)
    own = (str(spec.folder), blocks, _find_program("cat"), _find_program("sleep"), keep)
    return (SHELL, "-c", script.replace("$SHELL", SHELL), "outrider-task", *own, *_setsid_argv(spec), *spec.argv)


def _ulimit_line(name: str, limit: int) -> str:
    if name not in LIMITS or limit < 0:
        raise Refused(f"{name!r} = {limit} is not a valid limit; available: {', '.join(LIMITS)}")
    number, flag, unit = LIMITS[name]
    value = -(-_within_hard_limit(number, limit) // unit)
    # Shells use different flags for the number of processes.
    attempts = ("-u", "-p") if flag == "-u" else (flag,)
    tries = " || ".join(f"ulimit {attempt} {value} 2>/dev/null" for attempt in attempts)
    return f"{tries} || {{ echo 'outrider: this system cannot limit {name}; the command was not run'; exit 126; }}"


def _within_hard_limit(number: int, limit: int) -> int:
    hard = resource.getrlimit(number)[1]
    return limit if hard == resource.RLIM_INFINITY else min(limit, hard)


def _setsid_argv(spec: CommandSpec) -> Sequence[str]:
    if setsid := shutil.which("setsid", path=_SEARCH_PATH):
        return (setsid,)
    return (sys.executable, "-I", "-S", "-c", _NEW_SESSION, "keep" if "LC_CTYPE" in spec.environ else "drop")


def _find_program(name: str) -> str:
    path = shutil.which(name, path=_SEARCH_PATH)
    if not path:
        raise Refused(f"commands cannot run here: there is no {name} in {_SEARCH_PATH}")
    return path


_BUSY = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)


def start_detached(spec: CommandSpec) -> ProcessIdentity:
    """Start a command, detached. Raises Refused when nothing was started, or this folder was used before.

    A command that does not exist is started too: it ends with status 127.
    """
    if not spec.argv or spec.argv[0].startswith("-"):
        raise Refused("there is no command to run")
    argv = supervisor_argv(spec)
    if not spec.folder.is_absolute():
        raise Refused(f"the folder of a task must be an absolute path, unlike {spec.folder}")
    spec.folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        spec.folder.mkdir(mode=0o700)
    except FileExistsError:
        raise Refused(f"this task was already started, or given up before its start: {spec.folder}") from None
    try:
        return _spawn(spec, argv)
    except (OSError, ValueError) as error:
        shutil.rmtree(spec.folder)
        raise _start_error(error, spec) from error


def adopt(folder: Path) -> ProcessIdentity | None:
    """The supervisor of a task whose start was interrupted; None when it did not start, and then it never will.

    After None, the folder cannot be used for another attempt. After a crash of the machine, None proves nothing, since
    the files may be lost; compare the boot id.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    # A file and a folder cannot have the same name: either the supervisor creates it, or we do.
    with suppress(FileExistsError):
        TaskFiles(folder).started.mkdir()
    return recorded_supervisor(folder)


def _spawn(spec: CommandSpec, argv: Sequence[str]) -> ProcessIdentity:
    files = TaskFiles(spec.folder)
    stdin = _open_stdin(spec, files)
    reads, writes = os.pipe()
    try:
        write_private(files.record, f"pipe pipe:[{os.fstat(reads).st_ino}]\n".encode())
        process = subprocess.Popen(
            argv,
            stdin=stdin,
            stdout=writes,
            stderr=reads,
            cwd=spec.cwd,
            env={**spec.environ, TASK_VARIABLE: str(spec.folder)},
            start_new_session=True,
            pass_fds=spec.descriptors,
        )
    finally:
        for descriptor in (stdin, reads, writes):
            os.close(descriptor)
    # `is_alive` reaps it. This object must not wait for it, nor warn that it still runs.
    process.returncode = 0
    return identity_of(process.pid)


def _open_stdin(spec: CommandSpec, files: TaskFiles) -> int:
    if isinstance(spec.stdin, bytes):
        write_private(files.stdin_text, spec.stdin)
        descriptor = os.open(files.stdin_text, os.O_RDONLY)
        files.stdin_text.unlink()
        return descriptor
    if spec.stdin == "open":
        os.mkfifo(files.stdin, 0o600)
        os.mkfifo(files.hold, 0o600)
    return os.open(os.devnull, os.O_RDONLY)


def _start_error(error: OSError | ValueError, spec: CommandSpec) -> Refused | Unavailable:
    if isinstance(error, ValueError):
        return Refused(f"this command cannot be run: {error}")
    if error.errno == errno.E2BIG:
        return Refused("the command is too long; write it to a file and run that")
    if error.errno in _BUSY:
        return Unavailable(f"the system cannot start more processes now: {error.strerror}")
    if not spec.cwd.is_dir():
        return Refused(f"there is no folder {spec.cwd} to run it in")
    return Refused(f"the command was not started: {error.strerror} ({error.filename or SHELL})")
