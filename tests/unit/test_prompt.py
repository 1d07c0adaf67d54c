"""Prompts only grow, every call is closed, and a compaction replaces exactly what it summarised."""

import itertools

from hypothesis import given

from outrider.core.compaction import choose_cut, message_size, outline
from outrider.core.events import Begun, Body, Compacted, Ended, Entry, Input, Reply, Result, Started
from outrider.core.prompt import (
    NOT_RUN,
    STOPPED,
    SUMMARY,
    UNKNOWN,
    AssistantMessage,
    Message,
    ToolMessage,
    Transcript,
    UserMessage,
    transcript,
)
from outrider.core.types import Call
from tests.support.journals import entries, journals

HI = Input("hi")
PAY, LOOK = Call("c1", "pay", {}), Call("c2", "look", {})


def test_results_are_in_the_order_of_their_calls_and_late_inputs_follow() -> None:
    journal = entries(
        HI, Started(), Reply("x", 2, (PAY, LOOK)), Input("late"), Result("c2", "seen"), Result("c1", "paid")
    )
    assert transcript(journal) == [
        UserMessage("hi"),
        AssistantMessage("x", (PAY, LOOK)),
        ToolMessage((Result("c1", "paid"), Result("c2", "seen"))),
        UserMessage("late"),
    ]


def test_an_input_typed_while_the_model_wrote_comes_after_that_reply() -> None:
    assert transcript(entries(HI, Started(), Input("also"), Reply("bye", 2))) == [
        UserMessage("hi"),
        AssistantMessage("bye"),
        UserMessage("also"),
    ]


def test_a_stopped_turn_keeps_its_partial_reply_and_closes_its_calls() -> None:
    journal = entries(
        HI,
        Started(),
        Reply("", 2, (PAY, LOOK)),
        Begun("c1"),
        Ended("interrupted", 4, "stopped", "half a sent"),
        Input("go on"),
    )
    assert transcript(journal) == [
        UserMessage("hi"),
        AssistantMessage("", (PAY, LOOK)),
        ToolMessage((Result("c1", UNKNOWN, failed=True), Result("c2", NOT_RUN, failed=True))),
        AssistantMessage(f"half a sent\n\n{STOPPED}"),
        UserMessage("go on"),
    ]


def test_a_compaction_replaces_earlier_messages_by_a_summary() -> None:
    journal = entries(HI, Started(), Reply("one", 2), Ended("done", 2), Input("next"), Started(), Reply("two", 6))
    journal = [*journal, Entry(8, 8, Compacted(3, "they said hi"))]
    assert transcript(journal) == [UserMessage(SUMMARY + "they said hi"), UserMessage("next"), AssistantMessage("two")]


def _prompts(journal: list[Entry]) -> list[tuple[int, list[Message]]]:
    """The prompt of every reply, with the number of compactions before it."""
    found: list[tuple[int, list[Message]]] = []
    for entry in journal:
        if isinstance(entry.body, Reply):
            seen = journal[: entry.body.saw]
            found.append((sum(isinstance(e.body, Compacted) for e in seen), list(transcript(seen))))
    return found


@given(journals())
def test_each_prompt_extends_the_one_before_until_a_compaction(journal: list[Entry]) -> None:
    prompts = _prompts(journal)
    for (before, earlier), (after, later) in itertools.pairwise(prompts):
        if before == after:
            assert later[: len(earlier)] == earlier


@given(journals())
def test_wherever_a_journal_is_cut_every_call_is_followed_by_its_result(journal: list[Entry]) -> None:
    messages = list(transcript(journal))
    for message, following in itertools.pairwise([*messages, None]):
        if isinstance(message, AssistantMessage) and message.calls:
            assert isinstance(following, ToolMessage)
            assert [result.call for result in following.results] == [call.id for call in message.calls]
    assert sum(isinstance(m, ToolMessage) for m in messages) == sum(
        isinstance(m, AssistantMessage) and bool(m.calls) for m in messages
    )


@given(journals())
def test_no_input_is_ever_missing_from_the_prompt_before_a_compaction(journal: list[Entry]) -> None:
    until = next((n for n, e in enumerate(journal) if isinstance(e.body, Compacted)), len(journal))
    said = [e.body.text for e in journal[:until] if isinstance(e.body, Input)]
    assert [m.text for m in transcript(journal[:until]) if isinstance(m, UserMessage)] == said


@given(journals())
def test_a_transcript_is_the_same_entry_by_entry_or_at_once(journal: list[Entry]) -> None:
    grown = Transcript()
    for entry in journal:
        grown.add([entry])
        grown.messages()
    assert grown.messages() == transcript(journal)


@given(journals())
def test_a_compaction_drops_exactly_what_was_summarised(journal: list[Entry]) -> None:
    whole = Transcript()
    whole.add(journal)
    before = list(whole.messages())
    for upto, gone in whole.cuts():
        assert list(whole.before(upto)) == before[:gone]
        compacted = [*journal, Entry(len(journal) + 1, 0, Compacted(upto, "short"))]
        assert list(transcript(compacted)) == [UserMessage(SUMMARY + "short"), *before[gone:]]


def _long(turns: int) -> list[Body]:
    bodies: list[Body] = []
    for n in range(turns):
        bodies += [Input(f"question {n} " + "x" * 100), Started()]
        bodies += [Reply(f"answer {n} " + "y" * 100, len(bodies)), Ended("done", len(bodies))]
    return bodies


def test_the_choice_keeps_about_a_quarter_of_the_prompt() -> None:
    whole = Transcript()
    whole.add(entries(*_long(40)))
    upto = choose_cut(whole)
    assert upto is not None
    kept = sum(map(message_size, whole.messages())) - sum(map(message_size, whole.before(upto)))
    assert 0.15 < kept / sum(map(message_size, whole.messages())) < 0.3


def test_one_message_alone_cannot_be_compacted() -> None:
    whole = Transcript()
    whole.add(entries(HI, Started()))
    assert choose_cut(whole) is None


def test_an_outline_is_bounded_and_names_what_was_called() -> None:
    messages = transcript(entries(HI, Started(), Reply("", 2, (LOOK,)), Result("c2", "z" * 9999), *_long(500)))
    text = outline(messages)
    assert text.startswith("- person: hi\n- you:  (called look)")
    assert len(text) < 12_200
