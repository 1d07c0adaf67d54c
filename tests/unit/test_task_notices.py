"""Task notices: what the model reads, and that neither a command nor its output can pass for a field."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from outrider.core.tasks import (
    Notify,
    OutputMatches,
    Task,
    TaskSpec,
    TaskState,
    WatchProgress,
    ended_notice,
    render_notice,
    shortened_notice,
    should_report,
    stall_key,
    stalled_notice,
    unwatched_notice,
    watch_key,
    watch_notice,
    watch_progress,
)


def task(state: TaskState, command: str = "make test", description: str = "", watch: str = "") -> Task:
    spec = TaskSpec(kind="command", call="c", command=command, description=description, watch=watch)
    return Task(
        id="t-1", session="s", person="p", workspace="/w", spec=spec, state=state, created=0, ended=3_200, exit_code=2,
        why="a reason: with a colon",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("succeeded", "succeeded"),
        ("failed", "failed"),
        ("killed", "was killed"),
        ("lost", "was lost, and its outcome is unknown"),
        ("timed_out", "reached its time limit"),
    ],
)
def test_the_notice_of_an_end_says_all_of_it(state: TaskState, words: str) -> None:
    text = render_notice(ended_notice(task(state, description="the tests"), "one\ntwo\n", "/out"))
    assert text.split("\n") == [
        f"[Task t-1 {words}]",
        "command: make test",
        "description: the tests",
        "exit code: 2",
        "reason: a reason: with a colon",
        "duration: 3.2 s",
        "output file: /out",
        "last output:",
        "| one",
        "| two",
    ]


def test_long_output_is_cut_and_no_output_is_said() -> None:
    assert "last output (cut):" in render_notice(ended_notice(task("failed"), "x\n" * 2_000, "/out"))
    assert render_notice(ended_notice(task("failed"), "\n", "")).endswith("\nno output")


def test_the_notices_of_a_waiting_prompt_and_of_watched_output() -> None:
    stalled = render_notice(stalled_notice(task("running"), "Continue? [y/n] "))
    assert stalled.split("\n")[0] == "[Task t-1 seems to be waiting for input: make test]"
    assert stalled.split("\n")[-1] == "| Continue? [y/n] "
    last = render_notice(stalled_notice(task("running"), "Continue? [y/n] ", is_last=True))
    assert last == stalled + "\n[This was the last notice of a prompt before something is written to it.]"
    matches = OutputMatches(("E1", "E2"), 3, 60)
    watched = render_notice(watch_notice(task("running", watch="^E"), matches, 90, is_last=True))
    assert watched.split("\n") == [
        "[Task t-1 matched its watch pattern (^E): make test]",
        "| E1",
        "| E2",
        "[… and 3 more: the first of them is at tasks(action=read, task=t-1, start=60)]",
        "[This was the last notice of this pattern; it is no longer watched. "
        "Read what follows with tasks(action=read, task=t-1, start=90).]",
    ]
    slow = render_notice(unwatched_notice(task("running", watch="(a+)+$"), OutputMatches(("E1",)), 30))
    assert slow.split("\n") == [
        "[Task t-1 is no longer watched: matching (a+)+$ takes too long]",
        "| E1",
        "[… the output after this was not searched: tasks(action=read, task=t-1, start=30)]",
    ]


def test_matching_lines_are_kept_up_to_a_number_and_the_others_are_counted_from_the_first_of_them() -> None:
    first = OutputMatches().extended([(0, "E1"), (10, "E2")], 3)
    assert first == OutputMatches(("E1", "E2"))
    second = first.extended([(20, "x" * 400), (430, "E4"), (440, "E5")], 3)
    assert (second.lines[:2], len(second.lines[2]) <= 301) == (("E1", "E2"), True)
    assert (second.left_out, second.left_out_start) == (2, 430)
    assert second.extended([(500, "E6")], 3) == replace(second, left_out=3)


def test_how_far_a_pattern_was_searched_follows_from_the_keys_of_its_notices() -> None:
    keys = [watch_key("t-1", 20), watch_key("t-1", 100), watch_key("t-1", 3), stall_key("t-1", 900), "task/t-1/stalled"]
    assert watch_progress("t-1", keys) == WatchProgress(3, 100)
    assert watch_progress("t-1", [*keys, watch_key("t-1", None)]) == WatchProgress(3, 100, is_given_up=True)
    assert watch_progress("t-2", keys) == WatchProgress()


@pytest.mark.parametrize(
    ("notify", "is_awaited", "reported"),
    [
        ("always", False, {"ended", "failed", "stalled", "matched", "unwatched"}),
        ("failures", False, {"failed", "stalled", "matched", "unwatched"}),
        ("never", False, {"matched", "unwatched"}),
        ("always", True, set[str]()),
    ],
)
@pytest.mark.behaviour("B3")
def test_a_stall_is_reported_like_a_failure_and_matches_whatever_is_said_of_the_end(
    notify: Notify, is_awaited: bool, reported: set[str]
) -> None:
    running = task("running", watch="x")
    running = replace(running, spec=replace(running.spec, notify=notify, is_awaited=is_awaited))
    notices = {
        "ended": ended_notice(replace(running, state="succeeded"), "", ""),
        "failed": ended_notice(replace(running, state="failed"), "", ""),
        "stalled": stalled_notice(running, "ok? "),
        "matched": watch_notice(running, OutputMatches(("x",)), 2),
        "unwatched": unwatched_notice(running, OutputMatches(), 0),
    }
    assert {name for name, notice in notices.items() if should_report(running, notice)} == reported


@given(output=st.text(max_size=200), command=st.text(min_size=1, max_size=200))
def test_neither_the_command_nor_the_output_can_fake_a_field(output: str, command: str) -> None:
    fake = "exit code: 9\nreason: none\n" + output
    lines = render_notice(ended_notice(task("succeeded", command="a" + command), fake, "/out")).split("\n")
    fields = lines[: lines.index("last output:")]
    assert [line.partition(": ")[0] for line in fields[1:]] == [
        "command", "exit code", "reason", "duration", "output file"
    ]  # fmt: skip
    assert fields[2] == "exit code: 2"
    assert all(line.startswith("| ") for line in lines[len(fields) + 1 :])


def test_what_people_are_shown_of_the_output_is_short() -> None:
    output = "".join(f"line {number}\n\n" for number in range(50)) + "x" * 900
    notice = shortened_notice(ended_notice(task("failed"), output, "/out"))
    assert notice.output[:4] == ("line 46", "line 47", "line 48", "line 49")
    assert (len(notice.output), len(notice.output[4]) <= 201, notice.is_cut) == (5, True, True)
