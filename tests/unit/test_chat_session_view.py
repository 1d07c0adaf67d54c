"""A session as a person sees it: deltas hurry it along, entries decide what is on the screen in the end."""

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


def begun() -> ChatSessionView:
    return follow(ChatSessionView(), journal(Input("go"), Started()))[0]


def follow(view: ChatSessionView, events: Iterable[Event]) -> tuple[ChatSessionView, Sequence[DisplayItem]]:
    shows = [show for event in events for show in view.apply(event)]
    return view, shows


def entry(view: ChatSessionView, body: Body) -> Entry:
    return Entry(view.head + 1, 1_000 * (view.head + 1), body)


def printed(shows: Iterable[DisplayItem]) -> str:
    return "".join(show.text for show in shows if isinstance(show, ReplyBlock))


def test_a_reply_is_printed_block_by_block_and_its_end_when_it_is_recorded() -> None:
    view = begun()
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
def test_what_is_printed_is_the_reply_whatever_deltas_were_lost_or_came_late(
    cuts: list[int], lost: int, late: int, with_reset: bool
) -> None:
    ends = sorted({0, *cuts, len(TEXT)})
    deltas: list[Event] = [Delta(TEXT[a:b]) for a, b in pairwise(ends)]
    kept: list[Event] = [*deltas[:lost], Delta("fell behind", "reset"), *deltas[lost + 1 :]] if with_reset else deltas
    late = min(late, len(kept))
    view = begun()
    _, shows = follow(view, kept[: len(kept) - late])
    _, rest = follow(view, [entry(view, Reply(TEXT, saw=2)), *kept[len(kept) - late :]])
    assert printed([*shows, *rest]) == TEXT
    _, next_turn = follow(view, [entry(view, Ended("done", 2))])
    _, again = follow(view, [entry(view, Input("more"))])
    _, second = follow(view, [entry(view, Started()), Delta("Yes, "), Delta("done.\n\nBye.")])
    _, end = follow(view, [entry(view, Reply("Yes, done.\n\nBye.", saw=view.head))])
    assert [*next_turn, *again, *second, *end] == [UserText("more"), ReplyBlock("Yes, done.\n\n"), ReplyBlock("Bye.")]


def test_a_reply_that_was_begun_anew_with_other_words_is_printed_whole_and_said_to_be_so() -> None:
    view = begun()
    _, early = follow(view, [Delta("One way.\n\nTo"), Delta("the connection broke", "reset"), Delta("Another")])
    _, shows = follow(view, [entry(view, Reply("Another way.", saw=2))])
    assert [*early, *shows] == [
        ReplyBlock("One way.\n\n"),
        Note("the reply was begun anew:"),
        ReplyBlock("Another way."),
    ]


def test_what_is_typed_while_the_model_writes_waits_and_stands_after_its_reply() -> None:
    view = begun()
    _, shows = follow(view, [Delta("Work"), entry(view, Input("and tests"))])
    assert (shows, view.queued) == ([], ["and tests"])
    assert [line for _, line in view.live_lines(60, 10)] == ["Work", "› and tests  (queued)"]
    shows = view.apply(entry(view, Reply("Working.", saw=2)))
    assert (shows, view.queued) == ([ReplyBlock("Working."), UserText("and tests")], [])


def test_what_is_typed_between_two_steps_stands_before_the_reply_that_answers_it() -> None:
    view = begun()
    _, shows = follow(view, [entry(view, Reply("Done.", saw=2))])
    late = view.apply(entry(view, Input("one more")))
    _, end = follow(view, [Delta("Sure.\n\n"), entry(view, Reply("Sure.\n\nDone.", saw=view.head))])
    assert [*shows, *late, *end] == [
        ReplyBlock("Done."),
        UserText("one more"),
        ReplyBlock("Sure.\n\n"),
        ReplyBlock("Done."),
    ]


def test_calls_are_seen_while_they_run_and_told_in_a_line_each() -> None:
    view = begun()
    calls = (Call("a", "read", {"path": "x.txt"}), Call("b", "read", {"path": "y.txt"}))
    shows = list(view.apply(entry(view, Reply("", saw=2, calls=calls))))
    assert [line for _, line in view.live_lines(60, 10)] == ["⚙ read x.txt …", "⚙ read y.txt …"]
    shows += view.apply(entry(view, Result("b", "no file called y.txt", failed=True)))
    queued = view.apply(entry(view, Input("hurry")))
    shows += view.apply(entry(view, Result("a", "…", details="3 lines")))
    assert shows == [
        ToolLine("read y.txt", "no file called y.txt", failed=True),
        ToolLine("read x.txt", "3 lines"),
        UserText("hurry"),
    ]
    assert queued == []


def test_a_turn_that_failed_or_was_stopped_says_so() -> None:
    view = begun()
    assert view.apply(entry(view, Ended("failed", 2, "no key"))) == [Note("✗ no key", "bad")]
    view = begun()
    _, shows = follow(
        view, [Delta("One.\n\nTw"), entry(view, Ended("interrupted", 2, "stopped", partial="One.\n\nTw"))]
    )
    assert shows == [ReplyBlock("One.\n\n"), ReplyBlock("Tw"), Note("■ stopped", "warn")]
    assert view.live_lines(40, 10) == []


def test_a_delta_that_comes_after_the_end_of_its_turn_is_dropped() -> None:
    view = begun()
    _, shows = follow(view, [entry(view, Ended("failed", 2, "no key")), Delta("late words\n\n"), Delta("a", "call")])
    assert (shows, view.live_lines(40, 10)) == ([Note("✗ no key", "bad")], [])


def test_who_looks_in_on_a_running_turn_sees_its_reply_whole_when_it_is_there() -> None:
    view = ChatSessionView(journal(Input("go"), Started()))
    _, shows = follow(view, [Delta("middle of it.\n\n"), Delta("The e"), entry(view, Reply(TEXT, saw=2))])
    assert printed(shows) == TEXT


def test_a_turn_that_was_taken_up_and_a_session_that_was_summarised_are_told() -> None:
    view = ChatSessionView(journal(Input("go"), Started()))
    _, shows = follow(view, [entry(view, Resumed())])
    _, more = follow(view, [entry(view, Compacted(1, "all of it", Usage(10, 5), 0.5))])
    _, words = follow(view, [Delta("One.\n\n"), entry(view, Reply("One.\n\nTwo.", 3, usage=Usage(7, 3), cost=0.25))])
    assert [*shows, *more, *words] == [
        Note("taken up again after a crash"),
        Note("the earlier part of the session was summarised"),
        ReplyBlock("One.\n\n"),
        ReplyBlock("Two."),
    ]
    assert (view.usage, view.cost) == (Usage(17, 8), 0.75)


def test_what_waited_when_a_turn_was_taken_up_stands_before_the_reply_that_answers_it() -> None:
    view = ChatSessionView(journal(Input("go"), Started(), Input("and more")))
    _, shows = follow(view, [entry(view, Resumed(crashed=False))])
    _, rest = follow(view, [entry(view, Reply("Both done.", saw=view.head))])
    assert [*shows, *rest] == [UserText("and more"), Note("taken up again"), ReplyBlock("Both done.")]


def test_what_is_under_way_fits_the_room_it_has() -> None:
    view = begun()
    follow(view, [Delta("会話 " * 500), Delta("read", "call"), *(entry(view, Input(f"q{n} " * 50)) for n in range(9))])
    lines = [line for _, line in view.live_lines(30, 6)]
    assert (len(lines), [line for line in lines if cell_width(line) > 30]) == (6, [])


def test_what_the_model_is_at_is_said_until_it_speaks() -> None:
    view = begun()
    seen = [view.activity]
    for delta in (Delta("hm", "reasoning"), Delta("asked again in 2 s", "note"), Delta("read", "call"), Delta("So")):
        view.apply(delta)
        seen.append(view.activity)
    assert seen == ["waiting for the model …", "thinking …", "asked again in 2 s", "about to read …", ""]


def test_a_call_reads_as_its_tool_and_what_it_is_about() -> None:
    calls = [
        Call("1", "read", {"limit": 5, "path": "a.txt"}),
        Call("2", "search", {"pattern": "x\x1b[2J", "path": ""}),
        Call("3", "odd", {"list": [1]}),
        Call("4", "write", {"path": "b" * 99}),
    ]
    assert [call_line(call, 20) for call in calls] == ["read a.txt", "search x", "odd", "write " + "b" * 13 + "…"]


def test_who_comes_back_is_shown_the_last_exchanges() -> None:
    said = [
        body
        for n in range(1, 4)
        for body in (Input(f"q{n}"), Started(), Reply(f"a{n}", saw=1), Ended("done", 1), Changed("model", "x"))
    ]
    assert recap(journal(*said)) == [
        Note("earlier in this session:"),
        UserText("q2"),
        ReplyBlock("a2"),
        UserText("q3"),
        ReplyBlock("a3"),
    ]
    assert recap(journal(*said[:4])) == [UserText("q1"), ReplyBlock("a1")]
    assert recap([]) == []


def steered(*events: Event) -> tuple[ChatSessionView, Sequence[DisplayItem]]:
    view = ChatSessionView(steers=lambda runtime: runtime == "other")
    follow(view, journal(Input("go"), Started("other")))
    return follow(view, events)


def test_what_reaches_a_runtime_in_the_midst_of_its_words_stands_where_it_was_typed() -> None:
    begun, also = [Delta("One.\n\nTw"), Entry(3, 3_000, Input("and tests"))], UserText("and tests")
    view, shows = steered(*begun)
    assert (shows, view.queued) == ([ReplyBlock("One.\n\n"), ReplyBlock("Tw"), also], [])
    _, goes_on = follow(view, [Delta("o.\n\nThr"), entry(view, Reply("One.\n\nTwo.\n\nThree.", saw=2))])
    assert goes_on == [ReplyBlock("o.\n\n"), ReplyBlock("Three.")]
    view, _ = steered(*begun)
    _, anew = follow(view, [Delta("Tests first.\n\nThe"), entry(view, Reply("Tests first.\n\nThen this.", saw=3))])
    assert anew == [ReplyBlock("Tests first.\n\n"), ReplyBlock("Then this.")]
    view, _ = steered(*begun)
    assert view.apply(entry(view, Reply("Tests.", saw=3))) == [ReplyBlock("Tests.")]


def test_a_command_that_runs_when_its_turn_is_stopped_leaves_a_line() -> None:
    view = begun()
    call = Call("a", "shell", {"command": "make"})
    shows = list(view.apply(entry(view, Reply("", saw=2, calls=(call,)))))
    assert [line for _, line in view.live_lines(60, 10)] == ["$ make …"]
    shows += view.apply(entry(view, Begun("a")))
    shows += view.apply(entry(view, Ended("interrupted", 2, "stopped")))
    assert shows == [ToolLine("make", "cut off", failed=True, symbol="$"), Note("■ stopped", "warn")]


def test_what_another_runtime_was_given_is_told_once() -> None:
    view = ChatSessionView()
    _, shows = follow(
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
    told = [show.text for show in shows if isinstance(show, Note)]
    assert told == [f"codex was given what it had not seen of this session, up to #{seq}" for seq in (4, 13)]
