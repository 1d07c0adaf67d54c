"""Which commands only sleep, by many spellings, and by what a real shell does with them."""

import math
import shutil
import subprocess
from pathlib import Path

import pytest

from outrider.tools.shell_grammar import NotUnderstood, parse_command_line
from outrider.tools.sleep_commands import sleep_seconds

ONLY_SLEEP = {
    # spellings of one sleep
    "sleep 3": 3,
    "sleep 3s": 3,
    "sleep 5m": 300,
    "sleep 1h": 3_600,
    "sleep 1d": 86_400,
    "sleep 2.5": 2.5,
    "sleep .5m": 30,
    "sleep 3.": 3,
    "sleep 3e0": 3,
    "sleep 1E1": 10,
    "sleep 0x3": 3,
    "sleep +3": 3,
    "sleep 1 2": 3,
    "sleep 1m 30s": 90,
    "sleep -- 3": 3,
    "sleep infinity": math.inf,
    "sleep inf": math.inf,
    "  sleep   3  ": 3,
    "sleep\t3": 3,
    "sleep \\\n3": 3,
    # quotes and escapes
    'sleep "3"': 3,
    "sleep '3'": 3,
    "'sleep' 3": 3,
    '"sleep" 3': 3,
    "s'lee'p 3": 3,
    "\\sleep 3": 3,
    "sleep \\3": 3,
    # paths
    "/bin/sleep 3": 3,
    "/usr/bin/sleep 3": 3,
    # comments and redirections
    "sleep 3 # wait": 3,
    "# wait a little\nsleep 3": 3,
    "sleep 3 >/dev/null": 3,
    "sleep 3 > /dev/null 2>&1": 3,
    "sleep 3 </dev/null": 3,
    "2>/dev/null sleep 3": 3,
    "sleep 3 2>&-": 3,
    # groups and lists
    "(sleep 3)": 3,
    "( (sleep 3) )": 3,
    "{ sleep 3; }": 3,
    "{ sleep 3\n}": 3,
    "(cd x; sleep 3) >/dev/null": 3,
    "sleep 3;": 3,
    "sleep 3\n": 3,
    "sleep 1; sleep 2": 3,
    "sleep 1\nsleep 2": 3,
    "sleep 1 && sleep 2": 3,
    "cd x && sleep 60": 60,
    "cd $HOME && sleep 60": 60,
    "cd x || exit 1; sleep 60": 60,
    "set -e; sleep 3": 3,
    "set -euo pipefail\nsleep 3": 3,
    "true && sleep 3": 3,
    ": ; sleep 3": 3,
    "sleep 3 && true": 3,
    "sleep 3 || true": 3,
    "sleep 3 || make": 3,
    "false || sleep 3": 3,
    "! false && sleep 3": 3,
    "true || make && sleep 3": 3,
    "sleep 3; exit 0; make": 3,
    "export A=1; sleep 3": 3,
    "sleep 3 | sleep 4": 4,
    "sleep 3 & wait": 3,
    "sleep 3 & sleep 5 & wait": 5,
    "sleep 3 & wait $!": 3,
    # commands that run another one
    "A=1 sleep 3": 3,
    "A=1 B='x y' sleep 3": 3,
    "command sleep 3": 3,
    "exec sleep 3": 3,
    "time sleep 3": 3,
    "time -p sleep 3": 3,
    "nice sleep 3": 3,
    "nice -n 5 sleep 3": 3,
    "nohup sleep 3": 3,
    "env sleep 3": 3,
    "env -i A=1 sleep 3": 3,
    "env -u A sleep 3": 3,
    "setsid sleep 3": 3,
    "stdbuf -oL sleep 3": 3,
    "busybox sleep 3": 3,
    "timeout 9 sleep 3": 3,
    "timeout 2 sleep 30": 2,
    "timeout -k 1 --signal=KILL 9s sleep 3": 3,
    "timeout 0 sleep 3": 3,
    "timeout --preserve-status 1m nice sleep 3": 3,
    'sh -c "sleep 3"': 3,
    "sh -c 'cd x; sleep 3'": 3,
    "bash -lc 'sleep 3'": 3,
    "/bin/bash -e -c 'sleep 3' name": 3,
    "sh -c \"sh -c 'sleep 3'\"": 3,
    "timeout 9 sh -c '(sleep 3)'": 3,
    "eval sleep 3": 3,
    'eval "sleep 3"': 3,
}
DO_MORE = (
    "",
    "#",
    "sleep",
    "sleep x",
    "sleep -3",
    "sleep 3x",
    "sleep nan",
    "sleep --help",
    "sleep --version",
    "sleep $N",
    'sleep "$N"',
    "sleep $((1 + 2))",
    "sleep $(cat seconds)",
    "sleep `cat seconds`",
    "sleep 3?",
    "sleep {3,4}",
    "sleep 3 > log",
    "sleep 3 >> log",
    "sleep 3 < fifo",
    "sleep 3 > $log",
    "sleep 3>/dev/null",
    "sleep 3; echo ok",
    "sleep 3 && make",
    "sleep 3 # wait\nmake",
    "make; sleep 3",
    "make && sleep 3",
    "make || sleep 3",
    "echo waiting; sleep 3",
    "sleep 3 | cat",
    "yes | sleep 3",
    "(sleep 3; make)",
    "{ sleep 3; make; }",
    "{ sleep 3 }",
    "(sleep 3",
    "sleep 3)",
    "sleep 3 &&",
    "sleep 'open",
    'sleep "open',
    "sleep 3 &",
    "nohup sleep 300 &",
    "sleep 300 & make",
    "true || sleep 3",
    "false && sleep 3",
    "exit 0; sleep 3",
    "timeout 9 make",
    "timeout 2 sleep 30 || make",
    "timeout",
    "timeout sleep 3",
    "command -v sleep",
    "command -V sleep",
    "type sleep",
    "which sleep",
    "man sleep",
    "echo sleep 3",
    "echo 'sleep 3'",
    "grep sleep 3",
    "./sleep 3",
    "mysleep 3",
    "sleep3",
    "sleepy 3",
    "sh sleep 3",
    "sh script.sh",
    "sh -c",
    "sh -c 'sleep 3; make'",
    "sh -c 'sleep $1' name 3",
    "eval $CODE",
    "$SLEEP 3",
    "X=$(make) sleep 3",
    'cd "$(mktemp -d)" && sleep 3',
    "env",
    "env -S 'sleep 3'",
    "nice",
    "while true; do sleep 3; done",
    "until [ -f done ]; do sleep 3; done",
    "for i in 1 2 3; do sleep 3; done",
    "if true; then sleep 3; fi",
    "case x in *) sleep 3;; esac",
    "wait_for() { sleep 3; }; wait_for",
    "sleep 3 <<END\nEND",
    "[ -f done ] || sleep 3",
    "test -f done || sleep 3",
    "python3 -c 'import time; time.sleep(3)'",
    "docker run --rm image sleep 3",
    "ssh host sleep 3",
    "sudo sleep 3",
)
ELSEWHERE = ("busybox", "env -i", "pipefail")
"""Commands that would not find a program of ours, or that some shells do not have."""


@pytest.mark.behaviour("D4")
@pytest.mark.parametrize(("command", "seconds"), ONLY_SLEEP.items())
def test_a_command_that_only_sleeps_is_recognized(command: str, seconds: float) -> None:
    assert sleep_seconds(command) == seconds


@pytest.mark.behaviour("D4")
@pytest.mark.parametrize("command", DO_MORE)
def test_a_command_that_does_more_or_is_not_understood_is_not(command: str) -> None:
    assert sleep_seconds(command) == 0


@pytest.mark.parametrize("depth", [50, 100_000])
@pytest.mark.parametrize(
    ("opening", "closing"), [("(", ")"), ("{ ", "; }"), ("$(", ")"), ("sh -c '", "'"), ("env ", "")]
)
def test_a_deeply_nested_command_is_not_understood(depth: int, opening: str, closing: str) -> None:
    assert sleep_seconds(opening * depth + "sleep 3" + closing * depth) == 0


@pytest.mark.parametrize("command", sorted({*ONLY_SLEEP, *DO_MORE}))
def test_the_parser_accepts_nothing_that_a_real_shell_rejects(command: str) -> None:
    shell = shutil.which("dash") or "/bin/sh"
    try:
        parse_command_line(command)
    except NotUnderstood:
        return
    checked = subprocess.run([shell, "-n", "-c", command], capture_output=True, timeout=60, check=False)
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize("command", [one for one in ONLY_SLEEP if not any(words in one for words in ELSEWHERE)])
def test_a_real_shell_runs_nothing_but_the_sleep(tmp_path: Path, command: str) -> None:
    """With programs of that name that write down how they were called: they are all that runs."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("sleep", "make"):
        (programs / name).write_text(f'#!/bin/sh\necho {name} "$@" >> {tmp_path}/ran\n')
        (programs / name).chmod(0o755)
    (tmp_path / "x").mkdir()
    replaced = command.replace("/usr/bin/sleep", "sleep").replace("/bin/sleep", "sleep")
    environment = {"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(tmp_path)}
    # A login shell sets another PATH.
    replaced = replaced.replace("bash -lc", "bash -c")
    subprocess.run(
        ["/bin/sh", "-c", replaced], cwd=tmp_path, env=environment, timeout=60, check=False, capture_output=True
    )
    ran = (tmp_path / "ran").read_text().split("\n") if (tmp_path / "ran").exists() else []
    assert {line.split(" ")[0] for line in ran if line} == {"sleep"}
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["programs", "ran", "x"]
