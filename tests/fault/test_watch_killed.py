"""kill -9 around every record of a match or a stall: each is reported once, and nothing stays stalled.

Counted outside: by a model that writes down the notices it is shown.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import chain, cycle, repeat
from pathlib import Path

import pytest

from tests.support.survivors import end_all, survivors
from tests.support.watch_child import COMMANDS

pytestmark = [
    pytest.mark.promise("L6"),
    pytest.mark.behaviour("B7"),
    pytest.mark.behaviour("D7"),
    pytest.mark.behaviour("D9"),
]
_MOST_STARTS = 40


def run_until_done(folder: Path, points: Iterator[str]) -> tuple[int, dict[str, str]]:
    """Start the child again after each kill, with the next fail point: how many kills, and what its commands wrote."""
    (folder / "work").mkdir()
    for kills, point in zip(range(_MOST_STARTS), points, strict=False):
        child = subprocess.run(
            [sys.executable, "-m", "tests.support.watch_child", str(folder)],
            env={**os.environ, "OUTRIDER_FAIL": point},
            capture_output=True,
            timeout=120,
            check=False,
        )
        if child.returncode == 0:
            return kills, json.loads(child.stdout)
        assert child.returncode == -signal.SIGKILL, child.stderr.decode()
    raise AssertionError("it is killed again and again")


def lines_of(notices: Sequence[str], head: str) -> list[str]:
    """The quoted lines of the notices with such a first line."""
    found = [text.split("\n") for text in notices if re.search(head, text.split("\n")[0])]
    return [line[2:] for lines in found for line in lines if line.startswith("| ")]


@pytest.mark.parametrize(
    ("points", "least_kills"),
    [
        (cycle(["task_notice_not_recorded", "task_notice_recorded"]), 6),
        (chain(["task_end_not_recorded"] * 2, repeat("")), 2),
    ],
    ids=["each record", "each end"],
)
def test_each_match_and_each_stall_is_reported_once_wherever_outrider_is_killed(
    tmp_path: Path, points: Iterator[str], least_kills: int
) -> None:
    try:
        kills, outputs = run_until_done(tmp_path, points)
    finally:
        end_all(tmp_path)
    watched, asking = [json.loads((tmp_path / f"{name}.seen").read_text()) for name in COMMANDS]
    assert lines_of(watched, "matched its watch pattern") == ["E1", "E2", "E3"]
    assert [text for text in watched if "matched its watch pattern" not in text] == []
    stalls = [text.split("\n")[-1] for text in asking if "seems to be waiting for input" in text]
    assert stalls == ["| First? ", "| Second? "]
    assert [text.split("\n")[0].endswith("succeeded]") for text in asking] == [False, False, True]
    assert outputs[str(COMMANDS["asking"]["command"])] == "First? \nSecond? \nanswer1 answer2\n"
    assert kills >= least_kills
    assert survivors(tmp_path) == []
