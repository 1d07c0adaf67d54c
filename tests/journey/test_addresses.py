"""A turn answers to the person it works for. A notice that arrives in it changes none of its promises and questions.

Each test runs every pair of surfaces: the one that started the task, and the one of the turn in which it ends.
"""

from contextlib import suppress
from pathlib import Path

import anyio
import pytest

from outrider.testing.scripted_model import says
from tests.support.surfaces import (
    NOTIFIED,
    STEPS,
    SURFACES,
    Outcome,
    Scene,
    Step,
    Surface,
    expected_outcome,
    open_surfaces,
    probe_calls,
)

pytestmark = [pytest.mark.anyio]
Outcomes = dict[tuple[str, str], Outcome | None]
"""By the surface that started the task and that of the turn; None where the turn did not go on."""


async def run_pair(scene: Scene, source: Surface, target: Surface, step: Step, outcomes: Outcomes) -> None:
    """A task of one surface ends at this step of a turn on the other."""
    task = await scene.start_task(source)
    turn = await scene.begin_turn(target, step, says("", *probe_calls(scene.name)), says("Done."))
    await task.report()
    outcomes[source.name, target.name] = None
    with suppress(TimeoutError):
        outcomes[source.name, target.name] = await turn.finish(source if step == "after its end" else target)


@pytest.mark.behaviour("B2")
@pytest.mark.behaviour("B3")
@pytest.mark.behaviour("B6")
@pytest.mark.parametrize("step", STEPS)
async def test_a_notice_does_not_change_where_a_turn_answers_to(tmp_path: Path, step: Step) -> None:
    targets = [one for one in SURFACES.values() if one.can_answer or step != "while a question is pending"]
    pairs = [(source, target) for source in NOTIFIED for target in targets]
    outcomes: Outcomes = {}
    async with open_surfaces(tmp_path) as home, anyio.create_task_group() as group:
        for number, (source, target) in enumerate(pairs):
            group.start_soon(run_pair, home.scene(f"s{number}"), source, target, step, outcomes)
    expected = {(s.name, t.name): expected_outcome(s if step == "after its end" else t) for s, t in pairs}
    assert outcomes == expected
