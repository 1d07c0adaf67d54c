"""A turn answers to the person it works for. A notice that arrives in it changes none of its promises and questions.

The pairs are of surfaces: the one that started a task, and the one of the turn in which the task ends.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import anyio
import pytest

from outrider.core.events import Answered, Asked, Ended, Input, Started
from outrider.testing.scripted_model import call, says, stalls
from tests.support.surfaces import (
    NOTIFIED,
    STEPS,
    SURFACES,
    Cause,
    Outcome,
    Scene,
    Step,
    Surface,
    SurfaceHome,
    expected_outcome,
    open_surfaces,
    probe_calls,
)

pytestmark = [pytest.mark.anyio, pytest.mark.behaviour("B2"), pytest.mark.behaviour("B3"), pytest.mark.behaviour("B6")]
Pair = tuple[Surface, Surface]
Outcomes = dict[tuple[str, str], Outcome | None]
"""By the names of a pair; None where the turn did not go on."""
PAIRS = [(source, target) for source in NOTIFIED for target in SURFACES.values()]
CHAT, PYTHON, COMPLETION = SURFACES["terminal chat"], SURFACES["Python"], SURFACES["completion"]


async def outcomes_of(
    home: SurfaceHome, pairs: Iterable[Pair], run: Callable[[Scene, Surface, Surface], Awaitable[Outcome]]
) -> Outcomes:
    """Run each pair in a session of its own, all at once."""
    outcomes: Outcomes = {}

    async def run_one(scene: Scene, source: Surface, target: Surface) -> None:
        outcomes[source.name, target.name] = None
        with suppress(TimeoutError):
            outcomes[source.name, target.name] = await run(scene, source, target)

    async with anyio.create_task_group() as group:
        for number, (source, target) in enumerate(pairs):
            group.start_soon(run_one, home.scene(f"s{number}"), source, target)
    return outcomes


def expected_at_target(pairs: Sequence[Pair]) -> Outcomes:
    return {(source.name, target.name): expected_outcome(target) for source, target in pairs}


@pytest.mark.parametrize("step", [step for step in STEPS if step != "after its end"])
async def test_a_notice_does_not_change_where_a_turn_answers_to(tmp_path: Path, step: Step) -> None:
    pairs = [(source, target) for source, target in PAIRS if target.can_answer or step != "while a question is pending"]

    async def run(scene: Scene, source: Surface, target: Surface) -> Outcome:
        task = await scene.start_task(source)
        turn = await scene.begin_turn(target, step, says("", *probe_calls(scene.name)), says("Done."))
        await task.report()
        return await turn.finish()

    async with open_surfaces(tmp_path) as home:
        assert await outcomes_of(home, pairs, run) == expected_at_target(pairs)


@pytest.mark.parametrize("is_stopped", [False, True], ids=["ended", "stopped"])
async def test_a_notice_after_the_turn_answers_to_its_own_address(tmp_path: Path, is_stopped: bool) -> None:
    async def run(scene: Scene, source: Surface, target: Surface) -> Outcome:
        task = await scene.start_task(source)
        step: Step = "while a call runs" if is_stopped else "after its end"
        # A prompt after a stop says so in a message of the model, which counts as one of its replies.
        stopped = [says("Stopped.")] if is_stopped else []
        await scene.begin_turn(target, step, *stopped, says("", *probe_calls(scene.name)), says("Done."))
        await scene.home.agent.stop(await scene.session())
        head = (await scene.session()).head
        await task.report()
        return await scene.outcome(head, source)

    async with open_surfaces(tmp_path) as home:
        outcomes = await outcomes_of(home, PAIRS, run)
    assert outcomes == {(source.name, target.name): expected_outcome(source) for source, target in PAIRS}


@pytest.mark.parametrize("is_notice_first", [True, False], ids=["notice first", "message first"])
async def test_of_the_inputs_that_wait_for_a_turn_the_message_of_a_person_decides(
    tmp_path: Path, is_notice_first: bool
) -> None:
    # The child sessions of the tasks and the sessions that hold the slots use all slots, so that inputs wait.
    async with open_surfaces(tmp_path, limits_turns=str(len(PAIRS) + 1)) as home:
        holders = [stalls() for _ in range(len(PAIRS) + 1)]
        slots_held, ready, waiting = anyio.Event(), list[Scene](), list[Scene]()

        async def hold_slots() -> None:
            for number, holder in enumerate(holders):
                scene = home.scene(f"holder {number}")
                scene.add_replies(holder, says("Done."))
                await scene.session()
                await scene.send(CHAT)
            slots_held.set()

        async def run(scene: Scene, source: Surface, target: Surface) -> Outcome:
            task = await scene.start_task(source)
            scene.add_replies(says("", *probe_calls(scene.name)), says("Done."))
            ready.append(scene)
            if len(ready) == len(PAIRS):
                await hold_slots()
            await slots_held.wait()
            head = (await scene.session()).head
            for is_notice in (is_notice_first, not is_notice_first):
                await (task.report() if is_notice else scene.send(target))
            added = await home.agent.journal(await scene.session(), head)
            assert [isinstance(entry.body, Input) for entry in added] == [True, True]
            waiting.append(scene)
            if len(waiting) == len(PAIRS):
                for holder in holders:
                    holder.release()
            return await scene.outcome(head, target)

        assert await outcomes_of(home, PAIRS, run) == expected_at_target(PAIRS)


async def test_a_person_who_joins_a_turn_of_a_notice_moves_it(tmp_path: Path) -> None:
    async def run(scene: Scene, source: Surface, target: Surface) -> Outcome:
        task = await scene.start_task(source)
        gate = stalls()
        scene.add_replies(gate, says("It has ended."), says("", *probe_calls(scene.name)), says("Done."))
        await task.report()
        with anyio.fail_after(60):
            await gate.reached.wait()
        entry = await scene.send(target)
        gate.release()
        return await scene.outcome(entry.seq, target)

    async with open_surfaces(tmp_path) as home:
        assert await outcomes_of(home, PAIRS, run) == expected_at_target(PAIRS)


async def test_a_question_of_a_turn_of_a_notice_is_denied_when_the_person_who_joins_cannot_answer(
    tmp_path: Path,
) -> None:
    pairs = [(source, target) for source, target in PAIRS if source.can_answer]
    answers: dict[tuple[str, str], str] = {}

    async def run(scene: Scene, source: Surface, target: Surface) -> Outcome:
        task = await scene.start_task(source)
        scene.add_replies(says("", call("careful")), says("", *probe_calls(scene.name)), says("Done."))
        await task.report()
        asked = await scene.until(lambda body: isinstance(body, Asked))
        entry = await scene.send(target)
        if target.can_answer:
            await scene.answer(asked)
        answered = await scene.until(lambda body: isinstance(body, Answered), entry.seq)
        assert isinstance(answered.body, Answered)
        answers[source.name, target.name] = answered.body.person
        return await scene.outcome(entry.seq, target)

    async with open_surfaces(tmp_path) as home:
        assert await outcomes_of(home, pairs, run) == expected_at_target(pairs)
    assert answers == {(source.name, target.name): "owner" if target.can_answer else "" for source, target in pairs}


async def test_after_a_denied_question_a_person_who_can_answer_is_asked(tmp_path: Path) -> None:
    async with open_surfaces(tmp_path) as home:
        scene = home.scene("s")
        task, gate = await scene.start_task(PYTHON), stalls()
        scene.add_replies(says("", call("careful")), gate, says("", *probe_calls("s")), says("Done."))
        await task.report()
        answered = await scene.until(lambda body: isinstance(body, Answered))
        with anyio.fail_after(60):
            await gate.reached.wait()
        entry = await scene.send(CHAT)
        gate.release()
        assert await scene.outcome(entry.seq - 1, CHAT) == expected_outcome(CHAT)
        started = await home.agent.journal(await scene.session())
    assert isinstance(answered.body, Answered)
    assert answered.body.person == ""
    assert sum(isinstance(entry.body, Started) for entry in started) == 2


@pytest.mark.needs("sandbox")
@pytest.mark.parametrize("target", [CHAT, COMPLETION, SURFACES["sessions API"]], ids=lambda surface: surface.name)
async def test_a_command_of_a_surface_without_notices_changes_nothing_elsewhere(
    tmp_path: Path, target: Surface
) -> None:
    pairs = [(source, target) for source in SURFACES.values() if not source.is_notified]

    async def run(scene: Scene, source: Surface, target: Surface) -> Outcome:
        task = await scene.start_task(source, "end")
        turn = await scene.begin_turn(target, "while a call runs", says("", *probe_calls(scene.name)), says("Done."))
        await task.report()
        assert await scene.notices() == []
        return await turn.finish()

    async with open_surfaces(tmp_path) as home:
        assert await outcomes_of(home, pairs, run) == expected_at_target(pairs)


@pytest.mark.needs("sandbox")
@pytest.mark.parametrize("cause", ["end", "match"])
async def test_the_result_of_a_background_command_promises_what_its_own_turn_can_keep(
    tmp_path: Path, cause: Cause
) -> None:
    pairs = [(CHAT, COMPLETION), (PYTHON, CHAT), (CHAT, SURFACES["pipe"]), (SURFACES["sessions API"], PYTHON)]

    async def run(scene: Scene, source: Surface, target: Surface) -> Outcome:
        task = await scene.start_task(source, cause)
        calls = probe_calls(scene.name, has_command=True)
        turn = await scene.begin_turn(target, "between two calls", says("", *calls), says("Done."))
        await task.report()
        return await turn.finish()

    async with open_surfaces(tmp_path) as home:
        outcomes = await outcomes_of(home, pairs, run)
    expected = {(source.name, target.name): expected_outcome(target, has_command=True) for source, target in pairs}
    assert outcomes == expected


@pytest.mark.parametrize("target", [CHAT, SURFACES["run at a terminal"]], ids=lambda surface: surface.name)
async def test_a_pending_question_stays_pending_over_a_notice_and_a_restart(tmp_path: Path, target: Surface) -> None:
    async with open_surfaces(tmp_path) as home:
        scene = home.scene("s")
        task = await scene.start_task(PYTHON)
        await scene.begin_turn(target, "while a question is pending")
        await task.report()
    async with open_surfaces(tmp_path) as home:
        scene = home.scene("s")
        scene.add_replies(*[says("said before")] * 3, says("", *probe_calls("s")), says("Done."))
        await home.agent.resume_all()
        (asked,) = await home.agent.questions(await scene.session())
        await home.agent.answer(await scene.session(), asked, "once")
        answered = await scene.until(lambda body: isinstance(body, Answered))
        assert isinstance(answered.body, Answered)
        assert answered.body.person == "owner"
        assert await scene.outcome(answered.seq, target) == expected_outcome(target)
        ended = await scene.until(lambda body: isinstance(body, Ended), answered.seq)
    assert isinstance(ended.body, Ended)
    assert ended.body.outcome == "done"
