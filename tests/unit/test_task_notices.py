"""Task notices: what is rendered for the journal is parsed back, and output cannot pass for a field."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.tasks import (
    Task,
    TaskNotice,
    TaskSpec,
    TaskState,
    ended_notice,
    parse_notice,
    stalled_notice,
    watch_notice,
)

ENDED: tuple[TaskState, ...] = ("succeeded", "failed", "killed", "lost", "timed_out")


def task(state: TaskState, command: str = "make test", description: str = "", watch: str = "") -> Task:
    spec = TaskSpec(kind="command", call="c", command=command, description=description, watch=watch)
    return Task(
        id="t-1", session="s", person="p", workspace="/w", spec=spec, state=state, created=0, ended=3_200, exit_code=2,
        why="a reason: with a colon",
    )  # fmt: skip


@pytest.mark.parametrize("state", ENDED)
def test_the_notice_of_an_end_is_parsed_back(state: TaskState) -> None:
    notice = parse_notice(ended_notice(task(state, description="the tests"), "one\ntwo", "/out"))
    assert notice is not None
    assert (notice.task, notice.state, notice.label) == ("t-1", state, "")
    assert (notice.command, notice.description) == ("make test", "the tests")
    assert (notice.exit_code, notice.duration, notice.reason) == ("2", "3.2 s", "a reason: with a colon")
    assert notice.output == ("one", "two")


def test_the_notices_of_a_waiting_prompt_and_of_watched_output_are_parsed_back() -> None:
    stalled = parse_notice(stalled_notice(task("stalled"), "Continue? [y/n] "))
    watched = parse_notice(watch_notice(task("running", watch="^E"), ["E1", "E2"], 3))
    assert stalled is not None
    assert (stalled.state, stalled.label, stalled.output) == ("stalled", "make test", ("Continue? [y/n] ",))
    assert watched is not None
    assert (watched.state, watched.label, watched.output) == (None, "make test", ("E1", "E2"))
    assert "(^E)" in watched.event


@given(output=st.text(max_size=200), command=st.text(min_size=1, max_size=200))
def test_neither_the_command_nor_the_output_can_fake_a_field(output: str, command: str) -> None:
    text = ended_notice(task("succeeded", command="a" + command), "exit code: 9\nreason: none\n" + output, "/out")
    notice = parse_notice(text)
    assert notice is not None
    assert (notice.state, notice.exit_code, notice.reason) == ("succeeded", "2", "a reason: with a colon")
    assert notice.output[0].startswith("exit code: 9")


@pytest.mark.parametrize("text", ["", "hello", "[Task", "Task t-1 succeeded", "[Tasks running now:]\n- t-1"])
def test_any_other_text_is_not_a_notice(text: str) -> None:
    assert parse_notice(text) is None


def test_a_notice_in_words_of_another_version_is_parsed_without_a_state() -> None:
    assert parse_notice("[Task t-1 was beamed up: make]\ncommand: make") == TaskNotice(
        task="t-1", state=None, event="was beamed up", label="make", command="make"
    )
