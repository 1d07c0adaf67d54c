"""Task notices, command results and questions as the chat shows them, whatever their content."""

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.cli.chat.display import (
    DisplayItem,
    Note,
    OutputLines,
    QuestionText,
    ReplyBlock,
    ToolLine,
    UserText,
    answer_hint,
    is_unoffered_answer,
    parse_answer,
)
from outrider.cli.chat.renderer import TerminalRenderer
from outrider.cli.chat.session_view import (
    ChatSessionView,
    background_task_note,
    call_line,
    last_lines,
    recap,
    result_items,
    task_notice_items,
)
from outrider.core.approvals import ANSWERS
from outrider.core.events import (
    Answered,
    Asked,
    Begun,
    Body,
    Delta,
    Ended,
    Entry,
    Input,
    Reply,
    Result,
    Resumed,
    Started,
)
from outrider.core.tasks import (
    OutputMatches,
    Task,
    TaskNotice,
    TaskSpec,
    TaskState,
    ended_notice,
    render_notice,
    shortened_notice,
    stalled_notice,
    watch_notice,
)
from outrider.core.types import Call

ASKED = [Asked(f"ask-{n}", f"May {n}?\n| run {n}", n, ANSWERS, ("network",)) for n in ("a", "b")]
CALLS = tuple(Call(n, "shell", {"command": f"run {n}"}) for n in ("a", "b"))
BEFORE = (Input("go"), Started(), Reply("", saw=2, calls=CALLS))


def task(state: TaskState = "succeeded", code: int | None = 0, why: str = "", **spec: str) -> Task:
    task_spec = TaskSpec(kind="command", call="c", command=spec.pop("command", "make test"), **spec)  # pyright: ignore[reportArgumentType]
    return Task(
        id="t-1", session="s", person="p", workspace="/w", spec=task_spec, state=state, created=0, ended=3_200,
        exit_code=code, why=why,
    )  # fmt: skip


def notice_input(notice: TaskNotice) -> Input:
    return Input(render_notice(notice), source="task", notice=notice)


def notice() -> Input:
    return notice_input(ended_notice(task(), "", "/out"))


def journal(*bodies: Body) -> list[Entry]:
    return [Entry(seq, 1_000 * seq, body) for seq, body in enumerate(bodies, 1)]


def apply(view: ChatSessionView, *bodies: Body) -> list[DisplayItem]:
    items: list[DisplayItem] = []
    for body in bodies:
        items += view.apply(Entry(view.head + 1, 1_000 * (view.head + 1), body))
    return items


@pytest.mark.parametrize(
    ("ended", "line"),
    [
        (task(), Note("✓ t-1 succeeded · make test · exit 0, 3.2 s", "good")),
        (task(description="the tests"), Note("✓ t-1 succeeded · the tests · exit 0, 3.2 s", "good")),
        (task("failed", 2), Note("✗ t-1 failed · make test · exit 2, 3.2 s", "bad")),
        (task("killed", None, "by you"), Note("● t-1 was killed · make test · 3.2 s · by you", "warn")),
        (task("lost", None), Note("✗ t-1 was lost, and its outcome is unknown · make test · 3.2 s", "bad")),
        (task("timed_out", None), Note("● t-1 reached its time limit · make test · 3.2 s", "warn")),
    ],
)
def test_the_end_of_a_task_is_one_line(ended: Task, line: Note) -> None:
    assert task_notice_items(notice_input(ended_notice(ended, "", "/out"))) == [line]


def test_the_last_lines_of_output_follow_bounded() -> None:
    output = "\n".join(f"line {n}" for n in range(50)) + "\n" + "x" * 500
    _, lines = task_notice_items(notice_input(shortened_notice(ended_notice(task(), output, "/out"))))
    assert isinstance(lines, OutputLines)
    assert lines.lines[:4] == ("line 46", "line 47", "line 48", "line 49")
    assert (len(lines.lines), len(lines.lines[4])) == (5, 200)


def test_a_waiting_prompt_and_watched_output_are_shown_too() -> None:
    stalled = task_notice_items(notice_input(stalled_notice(task("stalled", None), "Continue? [y/n] ")))
    matches = OutputMatches(("E1", "E2"), 3, 60)
    watched = task_notice_items(notice_input(watch_notice(task("running", None, watch="^E"), matches, 90)))
    assert stalled == [
        Note("● t-1 seems to be waiting for input · make test · answer with /write t-1 TEXT", "warn"),
        OutputLines(("Continue? [y/n]",)),
    ]
    assert watched == [
        Note("● t-1 matched its watch pattern (^E) · make test · 3 more matches; see /tail t-1", "warn"),
        OutputLines(("E1", "E2")),
    ]


def test_a_notice_of_a_version_that_stored_only_text_is_one_line() -> None:
    old = Input("[Task t-1 was lost: how it ended is not known]\ncommand: make\n| much output", source="task")
    assert task_notice_items(old) == [Note("● [Task t-1 was lost: how it ended is not known]", "plain")]


def test_a_task_of_another_session_takes_one_line_with_the_name_of_the_session() -> None:
    note = background_task_note(notice_input(ended_notice(task(), "much\noutput", "/out")), "site")
    assert note == Note("✓ t-1 succeeded · make test · exit 0, 3.2 s  (session site; /switch site)", "good")


@given(output=st.text(max_size=300), command=st.text(min_size=1, max_size=300))
def test_no_command_or_output_can_fake_a_line_of_the_notice(output: str, command: str) -> None:
    noticed = ended_notice(task(command="a" + command), "exit code: 9\nreason: none\n" + output, "/out")
    items = task_notice_items(notice_input(shortened_notice(noticed)))
    lines = TerminalRenderer(is_plain=True).render(items, 400).splitlines()
    assert lines[0].startswith("✓ t-1 succeeded · a")
    assert lines[0].endswith(" · exit 0, 3.2 s")
    assert [line for line in lines[1:] if not line.startswith("    │")] == []
    assert len(lines) <= 6


def test_a_notice_is_shown_at_once_even_while_the_model_is_busy() -> None:
    view = ChatSessionView(journal(Input("go"), Started()))
    busy = [*view.apply(Delta("Work")), *apply(view, notice())]
    reply = apply(view, Reply("Working.", saw=2))
    assert ([*busy, *reply], view.queued) == ([*task_notice_items(notice()), ReplyBlock("Working.")], [])
    assert view.activity == "waiting for the model …"
    typed = apply(view, Input("and now?"))
    assert (typed, view.queued) == ([], ["and now?"])


def test_commands_are_shown_verbatim_with_their_outcome() -> None:
    def line(**outcome: object) -> list[DisplayItem]:
        text = msgspec.json.encode(outcome).decode()
        return list(result_items(CALLS[0], Result("a", text, details=str(outcome.pop("details", "")))))

    assert line(status="done", exit_code=0, output="x", details="exit 0, 1.0 s") == [
        ToolLine("run a", "exit 0, 1.0 s", symbol="$")
    ]
    assert line(status="done", exit_code=2, output="1\n2\n\n3\r33\n4\n", details="exit 2, 1.0 s") == [
        ToolLine("run a", "exit 2, 1.0 s", symbol="$"),
        OutputLines(("2", "33", "4")),
    ]
    assert line(status="background_started", task="t-1") == [ToolLine("run a", "started as task t-1", symbol="$")]
    assert line(status="auto_backgrounded", task="t-1") == [ToolLine("run a", "continues as task t-1", symbol="$")]
    assert result_items(CALLS[0], Result("a", "{cut", details="exit 0")) == [ToolLine("run a", "exit 0", symbol="$")]
    assert result_items(CALLS[0], Result("a", "no such need", failed=True)) == [
        ToolLine("run a", "no such need", failed=True, symbol="$")
    ]
    assert call_line(Call("x", "tasks", {"task": "t-1", "action": "wait"})) == "tasks wait t-1"


def test_the_last_lines_are_those_a_terminal_would_show() -> None:
    assert last_lines("10%\r50%\r100%\r\ndone \x1b[31mred\x1b[0m\n\n", 5) == ("100%", "done red")
    assert last_lines("", 5) == ()


def test_the_output_of_a_running_command_is_shown_below_it() -> None:
    view = ChatSessionView(journal(*BEFORE, Begun("a")))
    assert view.set_output_tails({"a": ("one", "会" * 40)})
    assert not view.set_output_tails({"a": ("one", "会" * 40)})
    assert [line for _, line in view.live_lines(20, 10)] == ["$ run a …", "  │ one", "  │ 会会会会会会会…", "$ run b …"]


def test_questions_are_shown_one_by_one_and_the_next_when_one_is_answered() -> None:
    view = ChatSessionView(journal(*BEFORE))
    first = apply(view, *ASKED)
    assert (first, view.running_calls) == ([QuestionText("ask-a", ASKED[0].question, ANSWERS)], [])
    assert view.live_lines(80, 10) == [
        ("class:ask", "? your answer: [o]nce · every later command of this [s]ession · every later"),
        ("class:ask", "command in this [w]orkspace · [n]o"),
    ]
    second = apply(view, Answered("ask-a", "once", "somebody"))
    assert second == [Note("✓ Allowed once", "good"), QuestionText("ask-b", ASKED[1].question, ANSWERS)]
    last = apply(view, Answered("ask-b", "no", "p"), Answered("ask-b", "once", "p"), Result("b", "denied", failed=True))
    assert last == [Note("✗ Denied", "warn"), ToolLine("run b", "not run", failed=True, symbol="$")]
    assert view.open_question is None


def test_an_answer_to_a_later_question_leaves_the_first_one_open() -> None:
    view = ChatSessionView(journal(*BEFORE, *ASKED))
    assert apply(view, Answered("ask-b", "no")) == [Note("✗ Denied: nobody answered", "warn")]
    assert view.open_question == ASKED[0]


def test_an_open_question_is_shown_again_when_the_session_is_opened_and_nothing_is_reported_as_resumed() -> None:
    entries = journal(*BEFORE, ASKED[0])
    view = ChatSessionView(entries)
    assert recap(entries) == [UserText("go")]
    assert view.question_items() == [QuestionText("ask-a", ASKED[0].question, ANSWERS)]
    assert (apply(view, Resumed()), next(line for _, line in view.live_lines(80, 10))) == ([], "$ run b …")
    assert apply(view, Ended("interrupted", 5, "stopped")) == [Note("■ Stopped", "warn")]
    assert view.open_question is None


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ("o", "once"),
        (" Once ", "once"),
        ("y", "once"),
        ("S", "session"),
        ("this session", "session"),
        ("w", "workspace"),
        ("n", "no"),
        ("NO", "no"),
        ("no way", None),
        ("not", None),
        ("", None),
    ],
)
def test_only_a_letter_or_word_of_a_choice_is_an_answer(typed: str, answer: str | None) -> None:
    assert parse_answer(typed, ANSWERS) == answer


@pytest.mark.parametrize(
    ("typed", "is_refused"), [("s", True), ("W", True), ("workspace", True), ("o", False), ("no", False), ("go", False)]
)
def test_an_answer_that_a_question_does_not_offer_is_recognised(typed: str, is_refused: bool) -> None:
    assert is_unoffered_answer(typed, ("once", "no")) == is_refused
    assert not is_unoffered_answer(typed, ANSWERS)
    assert not is_unoffered_answer(typed, ("accept", "decline"))


def test_other_choices_get_a_letter_where_it_is_unique() -> None:
    choices = ("accept", "accept always", "decline")
    assert answer_hint(choices) == "accept · accept always · [d]ecline"
    assert [parse_answer(typed, choices) for typed in ("a", "Accept Always", "d", "yes")] == [
        None,
        "accept always",
        "decline",
        None,
    ]


def test_a_question_is_shown_whole_or_says_how_much_is_missing() -> None:
    def rendered(text: str, *, is_plain: bool) -> list[str]:
        text = TerminalRenderer(is_plain=is_plain).render([QuestionText("a", text, ("no",))], 80)
        return re.sub(r"\x1b\[[\d;]*m", "", text).splitlines()

    assert rendered("May it?\n| rm x\n\x1b[2J", is_plain=True) == ["? May it?", "  │ rm x", r"  \x1b[2J", "  [n]o"]
    assert rendered("May it?\n| rm x", is_plain=False) == ["? May it?", "  │ rm x"]
    assert rendered("May it?\n| " + "x" * 70 + " " * 20 + "[o]nce", is_plain=False) == [
        "? May it?",
        "  │ " + "x" * 70,
        "  │ " + " " * 14 + "[o]nce",
    ]
    long = rendered("May it?\n" + "| x\n" * 500, is_plain=False)
    assert (len(long), "405 more characters are not shown: answer no unless" in long[-1]) == (401, True)


def test_an_error_that_is_the_reply_of_its_turn_is_shown_once() -> None:
    words = "Remote error (401): bad key"
    view = ChatSessionView(journal(Input("go"), Started("remote")))
    shown = apply(view, Reply(words, saw=1), Ended("failed", 1, words))
    assert shown == [ReplyBlock(words), Note("✗ The turn failed", "bad")]
    later = apply(view, Input("again"), Started("remote"), Ended("failed", 4, words))
    assert later == [UserText("again"), Note(f"✗ {words}", "bad")]
