"""What a command on disk promises, shown with real processes."""

import os
import re
import resource
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from math import inf
from pathlib import Path

import anyio
import msgspec
import pytest

from outrider.core.errors import Refused
from outrider.system.processes import ProcFilesystem, PsCommand
from outrider.workspaces.process_end import interrupt, remove_folder
from outrider.workspaces.supervisor import start_detached
from outrider.workspaces.task_folder import (
    CommandSpec,
    Exit,
    close_stdin,
    last_input_time,
    last_output_time,
    output_size,
    read_output,
)
from outrider.workspaces.task_folder import write_stdin as write_to
from tests.support.tasks import LONG, StartedTask, StartedTasks, is_gone, open_tasks, tail_output

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform == "win32", reason="commands run under sh"),
]


@pytest.fixture
async def tasks(tmp_path: Path) -> AsyncGenerator[StartedTasks]:
    async with open_tasks(tmp_path) as tasks:
        yield tasks


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("exit 0", Exit(0, "exit")),
        ("exit 3", Exit(3, "exit")),
        ("exit 255", Exit(255, "exit")),
        ("kill -KILL $$", Exit(137, "signal", 9)),
        ("kill -TERM $$", Exit(143, "signal", 15)),
        ("kill -INT $$", Exit(130, "signal", 2)),
        ("kill -PIPE $$", Exit(141, "signal", 13)),
        ("exec >&- 2>&- <&-; exit 4", Exit(4, "exit")),
        ("nosuchcommand", Exit(127, "exit")),
    ],
)
async def test_the_exit_of_a_command_is_reported(tasks: StartedTasks, text: str, end: Exit) -> None:
    task = tasks.run(text)
    assert (await task.wait(), task.poll()) == (end, end)


@pytest.mark.skipif(not os.path.realpath("/bin/sh").endswith("dash"), reason="this shell does not tell them apart")
async def test_a_status_that_only_looks_like_a_signal_is_reported_as_a_status(tasks: StartedTasks) -> None:
    assert await tasks.run("exit 129").wait() == Exit(129, "exit")
    assert await tasks.run("kill -HUP $$").wait() == Exit(129, "signal", 1)


async def test_stdout_and_stderr_are_kept_in_order(tasks: StartedTasks) -> None:
    task = tasks.run("for n in 1 2 3 4; do echo out $n; echo err $n >&2; done")
    await task.wait()
    assert task.output() == b"".join(b"out %d\nerr %d\n" % (n, n) for n in (1, 2, 3, 4))


async def test_output_can_be_read_while_the_command_runs(tasks: StartedTasks) -> None:
    task = tasks.run("printf 'Password: '; cat", stdin="open")
    await task.wait_for_output(b"Password: ")
    assert task.poll() is None
    close_stdin(task.folder)
    assert (await task.wait(), task.output()) == (Exit(0, "exit"), b"Password: ")


async def test_long_output_is_read_from_its_end_and_in_ranges(tasks: StartedTasks) -> None:
    task = tasks.run("seq -w 1 1300000", output=12 << 20)
    assert await task.wait() == Exit(0, "exit")
    assert output_size(task.folder) == 1_300_000 * 8
    assert tail_output(task.folder, 16) == b"1299999\n1300000\n"
    assert read_output(task.folder, 8 * 999, 16) == b"0001000\n0001001\n"
    assert (read_output(task.folder, 1_300_000 * 8, 100), len(tail_output(task.folder))) == (b"", 4000)
    assert last_output_time(task.folder) == (task.folder / "output").stat().st_mtime


@pytest.mark.behaviour("D7")
async def test_what_a_command_writes_in_response_to_input_is_never_older_than_the_input(tasks: StartedTasks) -> None:
    task = tasks.run("echo ready; while read line; do echo $line; done", stdin="open")
    await task.wait_for_output(b"ready\n")
    assert last_input_time(task.folder) <= last_output_time(task.folder)
    for number in range(200):
        write_to(task.folder, b"%d\n" % number)
        await task.wait_for_output(b"\n%d\n" % number)
        assert last_input_time(task.folder) <= last_output_time(task.folder)
    os.utime(task.folder / "output", (1, 1))  # as if it had been silent since
    assert last_input_time(task.folder) > last_output_time(task.folder)
    close_stdin(task.folder)
    assert last_input_time(task.folder) == inf


async def test_the_command_sees_its_own_environment_and_nothing_else(tasks: StartedTasks) -> None:
    spec = tasks.spec("", environ={"PATH": os.defpath, "ODD": "a'b\"c\nd$e é", "outrider": "mine", "EMPTY": ""})
    spec = msgspec.structs.replace(spec, argv=("/usr/bin/env", "-0"))
    task = StartedTask(spec.folder, start_detached(spec))
    await task.wait()
    seen = dict(line.split("=", 1) for line in task.output().decode().split("\0") if line)
    assert seen == {**spec.environ, "OUTRIDER_TASK": str(spec.folder)}


async def test_arguments_arrive_as_they_are(tasks: StartedTasks) -> None:
    words = ("a'b", 'c"d', "e\nf", "$HOME `id` \\", "é漢", "", "-n", "x" * 100_000)
    spec = msgspec.structs.replace(tasks.spec(""), argv=("/usr/bin/printf", r"%s\0", *words))
    task = StartedTask(spec.folder, start_detached(spec))
    await task.wait()
    assert task.output().decode().split("\0") == [*words, ""]


async def test_nothing_of_ours_leaks_into_the_command(tasks: StartedTasks) -> None:
    lock = os.open(tasks.home / "lock", os.O_RDWR | os.O_CREAT)
    os.set_inheritable(lock, True)
    try:
        task = tasks.run("readlink /proc/$$/fd/*; tty; umask; pwd -P")
        await task.wait()
    finally:
        os.close(lock)
    mask = os.umask(0o022)
    os.umask(mask)
    pipe = task.fact("pipe")
    seen = ["/dev/null", pipe, pipe, "not a tty", f"{mask:04o}", str(tasks.home.resolve())]
    assert task.output().decode().splitlines() == seen
    assert stat.S_IMODE(task.folder.stat().st_mode) == 0o700


async def test_the_command_leads_its_own_session_and_ignores_no_signal(tasks: StartedTasks) -> None:
    task = tasks.run("read -r stat </proc/$$/stat; echo $$ $stat; grep -E 'SigIgn|SigBlk' /proc/self/status")
    await task.wait()
    first, *masks = task.output().decode().splitlines()
    own, *fields = first.split()
    assert {fields[0], fields[4], fields[5], fields[6]} == {own, "0"}
    # Numbers from 32 on are the C library's own business, and some of its versions leave them ignored.
    assert [int(mask.split()[1], 16) & 0x7FFFFFFF for mask in masks] == [0, 0]


SHOW_IGNORED_SIGNALS = """
import pathlib, sys
import anyio
from outrider.workspaces.process_end import wait_for_exit
from outrider.workspaces.supervisor import start_detached
from outrider.workspaces.task_folder import CommandSpec, read_output
folder = pathlib.Path(sys.argv[1], "task")
spec = CommandSpec(("sh", "-c", "grep SigIgn /proc/self/status"), folder, pathlib.Path("/"), {})
anyio.run(wait_for_exit, folder, start_detached(spec))
print(read_output(folder, 0, 1000).decode())
"""


@pytest.mark.parametrize("ignored", ["INT", "INT QUIT HUP"])
def test_a_command_ignores_no_signal_when_outrider_itself_ignores_some(tmp_path: Path, ignored: str) -> None:
    # As under `nohup outrider up &`.
    argv = ["sh", "-c", f"trap '' {ignored}; exec \"$@\"", "sh", sys.executable, "-c", SHOW_IGNORED_SIGNALS]
    ran = subprocess.run([*argv, str(tmp_path)], capture_output=True, text=True, check=True)
    assert int(ran.stdout.split()[1], 16) & 0x7FFFFFFF == 0


async def test_limits_hold_for_the_command(tasks: StartedTasks) -> None:
    spec = tasks.spec("ulimit -n; ulimit -f; ulimit -v", rlimits={"nofile": 64, "fsize": 1 << 20, "as": 1 << 30})
    task = StartedTask(spec.folder, start_detached(spec))
    assert (await task.wait(), task.output()) == (Exit(0, "exit"), b"64\n2048\n1048576\n")
    with pytest.raises(Refused, match="'wings' = 1 is not a valid limit"):
        start_detached(tasks.spec("true", rlimits={"wings": 1}))


async def test_closed_stdin_is_empty_and_text_for_stdin_is_read_to_its_end(tasks: StartedTasks) -> None:
    empty, full = tasks.run("wc -c"), tasks.run("wc -c", stdin=b"x" * 300_000)
    assert (await empty.wait(), empty.output().strip()) == (Exit(0, "exit"), b"0")
    assert (await full.wait(), full.output().strip()) == (Exit(0, "exit"), b"300000")
    assert b"xxx" not in b"".join(path.read_bytes() for path in full.folder.iterdir())


async def test_open_stdin_takes_lines_one_by_one_until_it_is_closed(tasks: StartedTasks) -> None:
    task = tasks.run("while read -r word; do echo got $word; done; echo end", stdin="open")
    for word in (b"one", b"two"):
        write_to(task.folder, word + b"\n")
        await task.wait_for_output(b"got " + word)
    close_stdin(task.folder)
    close_stdin(task.folder)
    assert (await task.wait(), task.output()) == (Exit(0, "exit"), b"got one\ngot two\nend\n")
    with pytest.raises(Refused, match="is closed"):
        write_to(task.folder, b"three\n")


async def test_writing_never_waits_for_a_command_that_does_not_read(tasks: StartedTasks) -> None:
    lazy, deaf = tasks.run("sleep 1000", stdin="open"), tasks.run("exec <&-; echo deaf; sleep 1000", stdin="open")
    with pytest.raises(Refused, match="has not read what was written before"):
        _write_too_much(lazy.folder)
    await deaf.wait_for_output(b"deaf")
    with pytest.raises(Refused, match="no longer reads its stdin"):
        write_to(deaf.folder, b"x")
    with pytest.raises(Refused, match="too many at once"):
        write_to(lazy.folder, b"x" * 100_000)
    with pytest.raises(Refused, match="is closed"):
        write_to(tasks.run("true").folder, b"x")


async def test_a_command_ends_at_once_when_its_open_stdin_was_never_used(tasks: StartedTasks) -> None:
    assert await tasks.run("exit 5", stdin="open").wait() == Exit(5, "exit")


async def test_kill_ends_the_whole_group(tasks: StartedTasks) -> None:
    task = tasks.run("sleep 1000 & echo $!; sleep 1000 | cat & echo $!; echo ready; wait")
    await task.wait_for_output(b"ready")
    assert await task.kill() == Exit(143, "killed", 15)
    assert [is_gone(int(pid)) for pid in task.output().split()[:2]] == [True, True]
    assert task.poll() == Exit(143, "killed", 15)


async def test_kill_ends_a_command_that_ignores_sigterm(tasks: StartedTasks) -> None:
    task = tasks.run("trap '' TERM; sh -c 'echo $$; kill -STOP $$' & echo ready; while :; do sleep 1000; done")
    await task.wait_for_output(b"ready")
    assert await task.kill(grace=0.2) == Exit(137, "killed", 9)


async def test_a_command_may_clean_up_when_it_is_killed(tasks: StartedTasks) -> None:
    task = tasks.run("trap 'echo cleaned; exit 7' TERM; echo ready; while :; do sleep 0.01; done")
    await task.wait_for_output(b"ready")
    assert await task.kill() == Exit(7, "killed")
    assert task.output().endswith(b"cleaned\n")


@pytest.mark.parametrize("wrapper", ["", "env -i"])
async def test_kill_finds_a_daemon_that_left_the_group(tasks: StartedTasks, wrapper: str) -> None:
    daemon = 'trap "" TERM; echo $$ ready; while :; do sleep 1000; done'
    task = tasks.run(f"({wrapper} setsid sh -c '{daemon}' &)")
    await task.wait_for_output(b"ready")
    # It holds the output open, so the task is not over, though its first process is.
    assert task.poll() is None
    assert (await task.kill(grace=0.1)).reason == "killed"
    assert is_gone(int(task.output().split()[0]))


async def test_a_daemon_that_closes_the_output_outlives_the_task_until_it_is_killed(tasks: StartedTasks) -> None:
    task = tasks.run("setsid sleep 1000 >/dev/null 2>&1 & echo $!")
    assert await task.wait() == Exit(0, "exit")
    pid = int(task.output())
    assert not is_gone(pid)
    assert (await task.kill(), is_gone(pid)) == (Exit(0, "exit"), True)


async def test_an_interrupt_reaches_the_group(tasks: StartedTasks) -> None:
    task = tasks.run("trap 'echo interrupted; exit 9' INT; echo ready; while :; do sleep 0.01; done")
    await task.wait_for_output(b"ready")
    interrupt(task.folder, task.identity)
    assert (await task.wait(), task.output()) == (Exit(9, "exit"), b"ready\ninterrupted\n")
    with pytest.raises(Refused, match="no running command"):
        interrupt(task.folder, task.identity)


async def test_signals_that_reach_the_supervisor_do_not_disturb_it(tasks: StartedTasks) -> None:
    task = tasks.run("echo ready; read -r word; exit $word", stdin="open")
    await task.wait_for_output(b"ready")
    for number in (1, 2, 3, 15):
        os.kill(task.identity.pid, number)
    write_to(task.folder, b"6\n")
    assert await task.wait() == Exit(6, "exit")


async def test_a_command_that_cannot_be_started_is_refused_and_leaves_nothing(tasks: StartedTasks) -> None:
    spec = tasks.spec("true")
    for change, words in (
        ({"cwd": tasks.home / "gone"}, f"there is no folder {tasks.home}/gone to run it in"),
        ({"argv": ("/bin/echo", "x" * 200_000)}, "too long; write it to a file"),
        ({"argv": ("/bin/echo", "a\0b")}, "cannot be run: embedded null byte"),
        ({"argv": ()}, "no command to run"),
    ):
        with pytest.raises(Refused, match=re.escape(words)):
            start_detached(msgspec.structs.replace(spec, **change))
    assert not spec.folder.exists()


async def test_a_folder_serves_one_task(tasks: StartedTasks) -> None:
    spec = tasks.spec("echo once >>count")
    task = StartedTask(spec.folder, start_detached(spec))
    with pytest.raises(Refused, match="already started"):
        start_detached(spec)
    await task.wait()
    assert (tasks.home / "count").read_text() == "once\n"


async def test_only_a_task_that_has_ended_can_be_removed(tasks: StartedTasks) -> None:
    task = tasks.run("echo ready; cat", stdin="open")
    await task.wait_for_output(b"ready")
    with pytest.raises(Refused, match="still running"):
        remove_folder(task.folder)
    close_stdin(task.folder)
    await task.wait()
    remove_folder(task.folder)
    assert not task.folder.exists()
    remove_folder(task.folder)
    with pytest.raises(Refused, match="has been removed"):
        tail_output(task.folder)


async def test_the_ends_of_many_short_commands_are_all_seen_and_none_stays_a_zombie(tasks: StartedTasks) -> None:
    started = [tasks.run(f"exit {number % 100}") for number in range(200)]
    ends: dict[int, Exit] = {}

    async def watch(number: int) -> None:
        ends[number] = await started[number].wait()

    async with anyio.create_task_group() as group:
        for number in range(200):
            group.start_soon(watch, number)
    assert ends == {number: Exit(number % 100, "exit") for number in range(200)}
    assert [task for task in started if _exists(task.identity.pid)] == []


async def test_watching_costs_nothing_while_nothing_happens(tasks: StartedTasks) -> None:
    started = [tasks.run("echo ready; exec sleep 1000") for _ in range(50)]
    for task in started:
        await task.wait_for_output(b"ready")
    ends: list[Exit] = []

    async def watch(task: StartedTask) -> None:
        ends.append(await task.wait())

    spent = [0.0, 0.0]
    async with anyio.create_task_group() as group:
        for task in started:
            group.start_soon(watch, task)
        await anyio.wait_all_tasks_blocked()
        spent[0] = _cpu_seconds()
        await anyio.sleep(2)
        spent[1] = _cpu_seconds()
        for task in started:
            os.killpg(task.group(), 9)
    assert spent[1] - spent[0] < 0.2
    assert ends == [Exit(137, "signal", 9)] * 50


async def test_other_children_of_this_process_keep_their_statuses(tasks: StartedTasks) -> None:
    started = [tasks.run("exit 1") for _ in range(10)]
    for number in range(10):
        assert _status_of(number) == number
        async with await anyio.open_process(["/bin/sh", "-c", f"exit {number}"]) as process:
            with anyio.fail_after(LONG):
                assert (await process.wait(), await started[number].wait()) == (number, Exit(1, "exit"))


async def test_a_wait_can_be_cancelled_and_repeated(tasks: StartedTasks) -> None:
    task = tasks.run("cat", stdin="open")
    with anyio.move_on_after(0.01) as scope:
        await task.wait()
    assert scope.cancelled_caught
    close_stdin(task.folder)
    assert await task.wait() == Exit(0, "exit")


def _write_too_much(folder: Path) -> None:
    for _ in range(64):
        write_to(folder, b"x" * 60_000)


def _exists(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _status_of(number: int) -> int:
    return subprocess.run(["/bin/sh", "-c", f"exit {number}"], timeout=LONG, check=False).returncode


@pytest.mark.skipif(not shutil.which("ps") or not os.path.exists("/proc/self/stat"), reason="needs both ways to look")
def test_both_process_tables_agree() -> None:
    own, ps, proc = os.getpid(), PsCommand(), ProcFilesystem()
    there, here = ps.find_process(own), proc.find_process(own)
    assert there
    assert here
    assert (
        (there.pid, there.parent, there.group)
        == (here.pid, here.parent, here.group)
        == (own, os.getppid(), os.getpgrp())
    )
    assert abs(there.started - time.time()) < 24 * 3600
    assert own in {row.pid for row in ps.list_processes()} & {row.pid for row in proc.list_processes()}


def test_a_spec_needs_little() -> None:
    spec = CommandSpec(("true",), Path("/t"), Path("/"), {})
    assert (spec.stdin, spec.max_output, dict(spec.rlimits)) == ("closed", 10 << 20, {})
