"""The plan is total and bounded, and a turn can continue from any prefix of a journal."""

import pytest
from hypothesis import given

from outrider.core.events import (
    Answered,
    Asked,
    Begun,
    Body,
    Changed,
    Compacted,
    Ended,
    Entry,
    Input,
    Reply,
    Result,
    Resumed,
    Started,
)
from outrider.core.plan import (
    MAX_RESUMES,
    AskModel,
    AwaitAnswer,
    Begin,
    Bounds,
    Finish,
    Idle,
    ReconcileCalls,
    RunCalls,
    State,
    Stop,
    decide,
    fold,
)
from outrider.core.prompt import UNKNOWN
from outrider.core.types import Call, Prices, ToolSpec, Usage, call_id, cost
from tests.support.journals import LOOSE, REPLAY, entries, journals

HI = Input("hi")
PAY = Call("c1", "pay", {})
LOOK = Call("c2", "look", {})


def test_a_turn_goes_through_its_steps_in_order() -> None:
    whole: list[Body] = [
        HI,
        Started(),
        Reply("", 2, (PAY,)),
        Begun("c1"),
        Result("c1", "ok"),
        Reply("bye", 5),
        Ended("done", 5),
    ]
    steps = [type(decide(fold(entries(*whole[:n])), REPLAY)) for n in range(len(whole) + 1)]
    assert steps == [Idle, Begin, AskModel, RunCalls, ReconcileCalls, AskModel, Finish, Idle]


def test_an_input_that_arrives_while_the_model_writes_belongs_to_the_next_step() -> None:
    assert decide(fold(entries(HI, Started(), Input("also this"), Reply("bye", saw=2))), {}) == AskModel()


def test_a_failed_turn_does_not_start_again_by_itself() -> None:
    assert decide(fold(entries(HI, Started(), Ended("failed", 2, "no key"))), {}) == Idle()


def test_an_input_that_arrives_after_a_failed_turn_starts_the_next() -> None:
    assert decide(fold(entries(HI, Started(), Ended("failed", 2, "no key"), Input("again"))), {}) == Begin()


def test_after_a_crash_a_safe_call_runs_again_and_any_other_is_reconciled() -> None:
    journal = entries(HI, Started(), Reply("", 2, (LOOK, PAY)), Begun("c1"), Resumed())
    assert decide(fold(journal), REPLAY) == ReconcileCalls((PAY,))
    assert decide(fold([*journal, Entry(6, 6, Result("c1", UNKNOWN))]), REPLAY) == RunCalls((LOOK,))


def test_a_turn_that_crashed_the_process_too_often_is_given_up() -> None:
    crashes = [Resumed()] * (MAX_RESUMES + 1)
    assert isinstance(decide(fold(entries(HI, Started(), *crashes)), {}), Stop)
    assert decide(fold(entries(HI, Started(), *crashes[1:])), {}) == AskModel()


def test_a_turn_handed_over_in_order_is_never_given_up() -> None:
    assert decide(fold(entries(HI, Started(), *[Resumed(crashed=False)] * 50)), {}) == AskModel()


def test_a_new_reply_resets_the_count_of_crashes() -> None:
    crashes = [Resumed()] * MAX_RESUMES
    journal = entries(HI, Started(), *crashes, Reply("", 5, (LOOK,)), Resumed())
    assert fold(journal).resumes == 1


def _steps(count: int, price: float | None = None) -> list[Body]:
    bodies: list[Body] = [HI, Started()]
    for n in range(count):
        call = Call(f"c{n}", "look", {"n": n})
        bodies += [Reply("", len(bodies), (call,), cost=price), Result(call.id, str(n))]
    return bodies


def test_a_turn_stops_at_its_limit_of_steps() -> None:
    stop = decide(fold(entries(*_steps(60))), REPLAY, Bounds(steps=60))
    assert stop == Stop("stopped after 60 steps, the limit of one turn (limits.steps)")
    assert decide(fold(entries(*_steps(59))), REPLAY, Bounds(steps=60)) == AskModel()


def test_a_turn_stops_at_its_spending_limit() -> None:
    stop = decide(fold(entries(*_steps(3, price=0.5))), REPLAY, Bounds(spend=1.5))
    assert stop == Stop("stopped: this turn has cost $1.50; its limit is $1.50 (limits.spend)")


def _looping(times: int, result: str = "same") -> list[Body]:
    bodies: list[Body] = [HI, Started()]
    for n in range(times):
        bodies += [Reply("", len(bodies), (Call(f"c{n}", "look", {"x": 1}),)), Result(f"c{n}", result.format(n=n))]
    bodies.append(Reply("", len(bodies), (Call("last", "look", {"x": 1}),)))
    return bodies


def test_a_model_that_makes_the_same_call_over_and_over_is_stopped() -> None:
    assert isinstance(decide(fold(entries(*_looping(4))), REPLAY, Bounds(repeats=3)), Stop)
    assert isinstance(decide(fold(entries(*_looping(3))), REPLAY, Bounds(repeats=3)), RunCalls)


def test_the_same_call_with_another_result_each_time_is_no_loop() -> None:
    assert isinstance(decide(fold(entries(*_looping(10, "{n}"))), REPLAY, Bounds(repeats=3)), RunCalls)


def test_no_limit_ends_a_turn_that_is_done() -> None:
    bodies = _steps(3)
    bodies.append(Reply("done", len(bodies)))
    assert decide(fold(entries(*bodies)), REPLAY, Bounds(steps=4)) == Finish()


def test_settings_and_threads_outlive_turns() -> None:
    state = fold(entries(HI, Started(), Changed("model", "practice"), Reply("hello", 2), Ended("done", 3)))
    assert state.settings == {"model": "practice"}
    assert (state.steps, state.usage) == (0, Usage())


def test_a_compaction_counts_towards_what_the_turn_spent() -> None:
    state = fold(entries(HI, Started(), Compacted(1, "short", Usage(100, 10), 0.25)))
    assert (state.usage, state.cost, state.compacted, state.context) == (Usage(100, 10), 0.25, 3, 0)


@given(journals())
def test_any_prefix_of_any_journal_can_be_run_to_its_end(journal: list[Entry]) -> None:
    carried = list(journal)
    for _ in range(200):
        seq = len(carried) + 1
        match decide(fold(carried), REPLAY, LOOSE):
            case Idle():
                return
            case Begin():
                body: Body = Started()
            case AskModel():
                body = Reply("done", len(carried))
            case RunCalls(calls=calls) | ReconcileCalls(calls=calls):
                body = Result(calls[0].id, "ok")
            case AwaitAnswer():
                body = Answered(next(iter(fold(carried).questions)), "no", "owner")
            case Finish():
                body = Ended("done", fold(carried).saw)
            case Stop(reason=reason):
                body = Ended("failed", len(carried), reason)
        carried.append(Entry(seq, seq, body))
    pytest.fail("the plan does not come to an end")


@given(journals())
def test_folding_in_two_parts_gives_the_same_state(journal: list[Entry]) -> None:
    half = len(journal) // 2
    assert fold(journal[half:], fold(journal[:half])) == fold(journal)


def test_an_empty_journal_has_nothing_to_do() -> None:
    assert decide(State(), {}) == Idle()


def test_call_ids_are_unique_and_short_enough_for_every_provider() -> None:
    ids = [call_id(saw, n) for saw in (1, 2, 999, 10**9) for n in range(20)]
    assert len(set(ids)) == len(ids)
    assert all(len(id) == 9 and id.isalnum() for id in ids)


def test_cost_counts_cached_and_written_tokens_at_their_own_price() -> None:
    usage = Usage(input=1_000_000, output=100_000, cached=500_000, written=100_000)
    assert cost(usage, Prices(3.0, 15.0, cached=0.3, written=3.75)) == pytest.approx(1.2 + 0.15 + 0.375 + 1.5)
    assert cost(usage, Prices(3.0, 15.0)) == pytest.approx(3.0 + 1.5)


def test_a_turn_waits_for_an_answer_and_continues_with_it() -> None:
    journal = entries(HI, Started(), Reply("", 2, (PAY, LOOK)), Asked("a1", "pay?", "c1"))
    assert decide(fold(journal), REPLAY) == RunCalls((LOOK,))
    journal = entries(*(e.body for e in journal), Result("c2", "seen"))
    assert decide(fold(journal), REPLAY) == AwaitAnswer()
    journal = entries(*(e.body for e in journal), Answered("a1", "once", "owner"))
    assert decide(fold(journal), REPLAY) == RunCalls((PAY,))
    assert [(one.asked.ask, one.answer) for one in fold(journal).answers_about("c1")] == [("a1", "once")]


def test_a_turn_that_waits_for_an_answer_through_many_crashes_is_not_given_up() -> None:
    crashes = [Resumed()] * 20
    journal = entries(HI, Started(), Reply("", 2, (PAY,)), Asked("a1", "pay?", "c1"), *crashes)
    assert decide(fold(journal), REPLAY) == AwaitAnswer()


def test_a_turn_whose_questions_get_no_answer_is_stopped() -> None:
    bodies: list[Body] = [HI, Started()]
    for n in range(3):
        call = Call(f"c{n}", "pay", {"n": n})
        bodies += [Reply("", len(bodies), (call,)), Asked(f"a{n}", "pay?", call.id), Answered(f"a{n}", "no")]
        bodies += [Result(call.id, f"denied {n}", failed=True)]
    assert decide(fold(entries(*bodies)), REPLAY) == Stop("stopped: 3 questions in a row were not answered")


def test_a_call_that_has_begun_and_is_asked_about_again_waits_for_the_answer() -> None:
    asked = (Input("hi"), Started(), Reply("", 1, (PAY,)), Begun(PAY.id), Asked("ask-2", "really?", PAY.id))
    assert decide(fold(entries(*asked)), REPLAY) == AwaitAnswer()
    assert decide(fold(entries(*asked, Answered("ask-2", "once", "owner"))), REPLAY) == ReconcileCalls((PAY,))


def test_a_turn_that_a_notice_started_has_no_client_tools() -> None:
    lent = (ToolSpec("ring", "Ring a bell.", {"type": "object"}),)
    ended = entries(Input("hi", tools=lent), Started(), Reply("yes", 2), Ended("done", 2))
    notice = Input("it has ended", "task")
    assert set(fold(entries(*(e.body for e in ended), notice, Started())).client_tools) == set()
    assert set(fold(entries(*(e.body for e in ended), notice, Input("and?", tools=lent), Started())).client_tools) == {
        "ring"
    }


def test_a_call_of_a_client_tool_is_left_to_the_client() -> None:
    lent = (ToolSpec("ring", "Ring a bell.", {"type": "object"}),)
    ring = Call("c3", "ring", {})
    journal = entries(Input("hi", tools=lent), Started(), Reply("", 2, (ring, LOOK)))
    assert decide(fold(journal), REPLAY) == RunCalls((LOOK,))
    journal = entries(*(e.body for e in journal), Result("c2", "seen"), *[Resumed()] * 9)
    assert decide(fold(journal), REPLAY) == AwaitAnswer()
    journal = entries(*(e.body for e in journal), Result("c3", "ding"))
    assert decide(fold(journal), REPLAY) == AskModel()
