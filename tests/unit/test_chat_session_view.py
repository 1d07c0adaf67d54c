"""The view of a session: deltas make text appear sooner, entries decide what is printed in the end."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from outrider.cli.chat.display import DisplayItem, Note, ReplyBlock, ToolLine, UserText
from outrider.cli.chat.sanitize import cell_width
from outrider.cli.chat.session_view import ChatSessionView, call_line, recap
from outrider.core.events import (
    Begun,
    Body,
    Bound,
    Changed,
    Compacted,
    Delta,
    Ended,
    Entry,
    Event,
    Input,
    Reply,
    Result,
    Resumed,
    Started,
)
from outrider.core.types import Call, Usage

TEXT = "# Plan\n\nFirst this,\nthen that.\n\n- a\n- b\n\n```py\nx = 1\n\ny = 2\n```\n\nThe end."
BLOCKS = ["# Plan\n", "\nFirst this,\nthen that.\n\n", "- a\n- b\n\n", "```py\nx = 1\n\ny = 2\n```\n", "\nThe end."]


def journal(*bodies: Body) -> list[Entry]:
    return [Entry(seq, 1_000 * seq, body) for seq, body in enumerate(bodies, 1)]


def working_view() -> ChatSessionView:
    return follow(ChatSessionView(), journal(Input("go"), Started()))[0]


def follow(view: ChatSessionView, events: Iterable[Event]) -> tuple[ChatSessionView, Sequence[DisplayItem]]:
    items = [item for event in events for item in view.apply(event)]
    return view, items


def entry(view: ChatSessionView, body: Body) -> Entry:
    return Entry(view.head + 1, 1_000 * (view.head + 1), body)


def printed(items: Iterable[DisplayItem]) -> str:
    return "".join(item.text for item in items if isinstance(item, ReplyBlock))


def test_a_reply_is_printed_block_by_block_and_its_last_block_when_it_is_recorded() -> None:
    view = working_view()
    _, early = follow(view, [Delta(piece) for piece in TEXT.splitlines(keepends=True)])
    assert early == [ReplyBlock(text) for text in BLOCKS[:-1]]
    assert [line for _, line in view.live_lines(40, 10)] == ["The end."]
    assert view.apply(entry(view, Reply(TEXT, saw=2))) == [ReplyBlock(BLOCKS[-1])]
    assert (view.live_lines(40, 10), view.apply(entry(view, Ended("done", 2)))) == ([], [])


@given(
    cuts=st.lists(st.integers(0, len(TEXT)), max_size=8),
    lost=st.integers(0, 9),
    late=st.integers(0, 9),
    with_reset=st.booleans(),
)
def test_the_whole_reply_is_printed_whatever_deltas_are_lost_or_late(
    cuts: list[int], lost: int, late: int, with_reset: bool
) -> None:
    ends = sorted({0, *cuts, len(TEXT)})
    deltas: list[Event] = [Delta(TEXT[a:b]) for a, b in pairwise(ends)]
    received: list[Event] = (
        [*deltas[:lost], Delta("fell behind", "reset"), *deltas[lost + 1 :]] if with_reset else deltas
    )
    late = min(late, len(received))
    view = working_view()
    _, items = follow(view, received[: len(received) - late])
    _, rest = follow(view, [entry(view, Reply(TEXT, saw=2)), *received[len(received) - late :]])
    assert printed([*items, *rest]) == TEXT
    _, next_turn = follow(view, [entry(view, Ended("done", 2))])
    _, again = follow(view, [entry(view, Input("more"))])
    _, second = follow(view, [entry(view, Started()), Delta("Yes, "), Delta("done.\n\nBye.")])
    _, end = follow(view, [entry(view, Reply("Yes, done.\n\nBye.", saw=view.head))])
    assert [*next_turn, *again, *second, *end] == [UserText("more"), ReplyBlock("Yes, done.\n\n"), ReplyBlock("Bye.")]


def test_a_reply_that_restarts_with_other_text_is_printed_whole_after_a_note() -> None:
    view = working_view()
    _, early = follow(view, [Delta("One way.\n\nTo"), Delta("the connection broke", "reset"), Delta("Another")])
    _, items = follow(view, [entry(view, Reply("Another way.", saw=2))])
    assert [*early, *items] == [
        ReplyBlock("One way.\n\n"),
        Note("The reply was restarted:"),
        ReplyBlock("Another way."),
    ]


def test_a_message_typed_during_a_reply_is_queued_and_printed_after_it() -> None:
    view = working_view()
    _, items = follow(view, [Delta("Work"), entry(view, Input("and tests"))])
    assert (items, view.queued) == ([], ["and tests"])
    assert [line for _, line in view.live_lines(60, 10)] == ["Work", "› and tests  (queued)"]
    items = view.apply(entry(view, Reply("Working.", saw=2)))
    assert (items, view.queued) == ([ReplyBlock("Working."), UserText("and tests")], [])


def test_a_stop_says_what_becomes_of_a_queued_message() -> None:
    view = working_view()
    follow(view, [Delta("Work"), entry(view, Input("and tests"))])
    assert view.apply(entry(view, Ended("interrupted", saw=view.head, reason="stopped", partial="Work"))) == [
        ReplyBlock("Work"),
        UserText("and tests"),
        Note("■ Stopped", "warn"),
        Note("The queued message was not answered; the model reads it with your next message", "warn"),
    ]


def test_a_message_typed_between_two_steps_is_printed_before_the_next_reply() -> None:
    view = working_view()
    _, items = follow(view, [entry(view, Reply("Done.", saw=2))])
    late = view.apply(entry(view, Input("one more")))
    _, end = follow(view, [Delta("Sure.\n\n"), entry(view, Reply("Sure.\n\nDone.", saw=view.head))])
    assert [*items, *late, *end] == [
        ReplyBlock("Done."),
        UserText("one more"),
        ReplyBlock("Sure.\n\n"),
        ReplyBlock("Done."),
    ]


def test_calls_are_shown_while_they_run_and_printed_in_a_line_each() -> None:
    view = working_view()
    calls = (Call("a", "read", {"path": "x.txt"}), Call("b", "read", {"path": "y.txt"}))
    items = list(view.apply(entry(view, Reply("", saw=2, calls=calls))))
    assert [line for _, line in view.live_lines(60, 10)] == ["⚙ read x.txt …", "⚙ read y.txt …"]
    items += view.apply(entry(view, Result("b", "no file called y.txt", failed=True)))
    queued = view.apply(entry(view, Input("hurry")))
    items += view.apply(entry(view, Result("a", "…", details="3 lines")))
    assert items == [
        ToolLine("read y.txt", "no file called y.txt", failed=True),
        ToolLine("read x.txt", "3 lines"),
        UserText("hurry"),
    ]
    assert queued == []


def test_a_failed_or_stopped_turn_prints_the_reason() -> None:
    view = working_view()
    assert view.apply(entry(view, Ended("failed", 2, "no key"))) == [Note("✗ no key", "bad")]
    view = working_view()
    _, items = follow(
        view, [Delta("One.\n\nTw"), entry(view, Ended("interrupted", 2, "stopped", partial="One.\n\nTw"))]
    )
    assert items == [ReplyBlock("One.\n\n"), ReplyBlock("Tw"), Note("■ Stopped", "warn")]
    assert view.live_lines(40, 10) == []


def test_a_delta_after_the_end_of_its_turn_is_dropped() -> None:
    view = working_view()
    _, items = follow(view, [entry(view, Ended("failed", 2, "no key")), Delta("late words\n\n"), Delta("a", "call")])
    assert (items, view.live_lines(40, 10)) == ([Note("✗ no key", "bad")], [])


def test_a_view_opened_during_a_turn_prints_the_reply_when_it_is_complete() -> None:
    view = ChatSessionView(journal(Input("go"), Started()))
    _, items = follow(view, [Delta("middle of it.\n\n"), Delta("The e"), entry(view, Reply(TEXT, saw=2))])
    assert printed(items) == TEXT


def test_a_resumed_turn_and_a_summary_are_reported() -> None:
    view = ChatSessionView(journal(Input("go"), Started()))
    _, items = follow(view, [entry(view, Resumed())])
    _, more = follow(view, [entry(view, Compacted(1, "all of it", Usage(10, 5), 0.5))])
    _, reply = follow(view, [Delta("One.\n\n"), entry(view, Reply("One.\n\nTwo.", 3, usage=Usage(7, 3), cost=0.25))])
    assert [*items, *more, *reply] == [
        Note("Resumed after a crash"),
        Note("Earlier messages were summarised"),
        ReplyBlock("One.\n\n"),
        ReplyBlock("Two."),
    ]
    assert (view.usage, view.cost) == (Usage(17, 8), 0.75)


def test_messages_queued_when_a_turn_is_resumed_are_printed_before_its_reply() -> None:
    view = ChatSessionView(journal(Input("go"), Started(), Input("and more")))
    _, items = follow(view, [entry(view, Resumed(crashed=False))])
    _, rest = follow(view, [entry(view, Reply("Both done.", saw=view.head))])
    assert [*items, *rest] == [UserText("and more"), Note("Resumed"), ReplyBlock("Both done.")]


def test_the_live_lines_fit_their_width_and_height() -> None:
    view = working_view()
    follow(view, [Delta("会話 " * 500), Delta("read", "call"), *(entry(view, Input(f"q{n} " * 50)) for n in range(9))])
    lines = [line for _, line in view.live_lines(30, 6)]
    assert (len(lines), [line for line in lines if cell_width(line) > 30]) == (6, [])


def test_the_activity_of_the_model_is_shown_until_it_replies() -> None:
    view = working_view()
    activities = [view.activity]
    for delta in (Delta("hm", "reasoning"), Delta("asked again in 2 s", "note"), Delta("read", "call"), Delta("So")):
        view.apply(delta)
        activities.append(view.activity)
    assert activities == ["waiting for the model …", "thinking …", "asked again in 2 s", "calling read …", ""]


def test_a_call_is_shown_as_its_tool_and_main_argument() -> None:
    calls = [
        Call("1", "read", {"limit": 5, "path": "a.txt"}),
        Call("2", "search", {"pattern": "x\x1b[2J", "path": ""}),
        Call("3", "odd", {"list": [1]}),
        Call("4", "write", {"path": "b" * 99}),
    ]
    assert [call_line(call, 20) for call in calls] == [
        "read a.txt",
        r"search x\x1b[2J",
        "odd",
        "write " + "b" * 13 + "…",
    ]


def test_the_recap_shows_the_last_exchanges() -> None:
    bodies = [
        body
        for n in range(1, 4)
        for body in (Input(f"q{n}"), Started(), Reply(f"a{n}", saw=1), Ended("done", 1), Changed("model", "x"))
    ]
    assert recap(journal(*bodies)) == [
        Note("Earlier in this session:"),
        UserText("q2"),
        ReplyBlock("a2"),
        UserText("q3"),
        ReplyBlock("a3"),
    ]
    assert recap(journal(*bodies[:4])) == [UserText("q1"), ReplyBlock("a1")]
    assert recap([]) == []


def steered(*events: Event) -> tuple[ChatSessionView, Sequence[DisplayItem]]:
    view = ChatSessionView(can_steer=lambda runtime: runtime == "other")
    follow(view, journal(Input("go"), Started("other")))
    return follow(view, events)


def test_a_steering_message_is_printed_where_it_was_typed() -> None:
    partial, message = [Delta("One.\n\nTw"), Entry(3, 3_000, Input("and tests"))], UserText("and tests")
    view, items = steered(*partial)
    assert (items, view.queued) == ([ReplyBlock("One.\n\n"), ReplyBlock("Tw"), message], [])
    _, continued = follow(view, [Delta("o.\n\nThr"), entry(view, Reply("One.\n\nTwo.\n\nThree.", saw=2))])
    assert continued == [ReplyBlock("o.\n\n"), ReplyBlock("Three.")]
    view, _ = steered(*partial)
    _, restarted = follow(view, [Delta("Tests first.\n\nThe"), entry(view, Reply("Tests first.\n\nThen this.", saw=3))])
    assert restarted == [ReplyBlock("Tests first.\n\n"), ReplyBlock("Then this.")]
    view, _ = steered(*partial)
    assert view.apply(entry(view, Reply("Tests.", saw=3))) == [ReplyBlock("Tests.")]


def test_a_command_running_when_its_turn_is_stopped_is_shown_as_interrupted() -> None:
    view = working_view()
    call = Call("a", "shell", {"command": "make"})
    items = list(view.apply(entry(view, Reply("", saw=2, calls=(call,)))))
    assert [line for _, line in view.live_lines(60, 10)] == ["$ make …"]
    items += view.apply(entry(view, Begun("a")))
    items += view.apply(entry(view, Ended("interrupted", 2, "stopped")))
    assert items == [ToolLine("make", "interrupted", failed=True, symbol="$"), Note("■ Stopped", "warn")]


def test_the_history_sent_to_another_runtime_is_reported_once() -> None:
    view = ChatSessionView()
    _, items = follow(
        view,
        journal(
            *(Input("a"), Started(), Reply("b", 1), Ended("done", 1)),
            *(
                Input("c"),
                Started("codex"),
                Bound("codex", "t", saw=5),
                Bound("codex", "t", "1", saw=5),
                Ended("done", 1),
            ),
            *(Input("d"), Started(), Reply("e", 10), Ended("done", 1)),
            *(Input("f"), Started("codex"), Bound("codex", "t", saw=5), Bound("codex", "t", "2", saw=14)),
        ),
    )
    notes = [item.text for item in items if isinstance(item, Note)]
    assert notes == [f"codex received the earlier part of this session, up to #{seq}" for seq in (4, 13)]
