"""A match or a stall of a task is reported where the turn that started the task can be told later, and nowhere else.

The surface that started the task and that of the turn in which it happens vary, at every step of that turn.
`--hypothesis-profile=long` runs every pair at every step instead of some of them.
"""

from pathlib import Path

import anyio
import pytest
from hypothesis import settings
from msgspec import Struct

from outrider.core.events import Input, Started
from outrider.testing.scripted_model import says
from tests.support.surfaces import (
    PATIENCE,
    STEPS,
    SURFACES,
    Cause,
    Outcome,
    Scene,
    Step,
    Surface,
    expected_outcome,
    open_surfaces,
    probe_calls,
)
from tests.support.task_notices import wait_for_state

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.behaviour("B2"),
    pytest.mark.behaviour("B3"),
    pytest.mark.behaviour("B7"),
    pytest.mark.behaviour("D7"),
]
CAUSES: tuple[Cause, ...] = ("match", "stall")
EVENTS = {"match": "matched", "stall": "stalled"}
Cell = tuple[Cause, Surface, Surface]
"""What happens, the surface that started the task, and that of the turn in which it happens."""


class Seen(Struct, frozen=True):
    """What happened to one cell, seen from outside."""

    outcome: Outcome | None
    """Of the turn; None where no turn was to go on."""
    notices: tuple[tuple[str, str], ...]
    """What happened, and where that is answered."""
    state: str
    turns: int
    """How many there were in all, where there was no outcome: delegated work reports in turns of its own."""


def cells_of(step: Step) -> list[Cell]:
    surfaces = list(SURFACES.values())
    chosen: list[Cell]
    if settings.default and settings.default.max_examples > 100:
        chosen = [(cause, source, target) for cause in CAUSES for source in surfaces for target in surfaces]
    else:  # every source and every target, in other pairs at each step
        count, at = len(surfaces), STEPS.index(step)
        chosen = [
            (CAUSES[(number + at) % 2], source, surfaces[(number + 2 * at) % count])
            for number, source in enumerate(surfaces)
        ]
    return [cell for cell in chosen if cell[2].can_answer or step != "while a question is pending"]


async def run_cell(scene: Scene, cell: Cell, step: Step) -> Seen:
    cause, source, target = cell
    agent = scene.home.agent
    task = await scene.start_task(source, cause)
    turn = await scene.begin_turn(target, step, says("", *probe_calls(scene.name)), says("Done."))
    if source.is_notified:
        await task.report()
    else:
        task.trigger()
        with anyio.fail_after(PATIENCE):
            while not agent.commands.size(task.task):
                await anyio.sleep(0.05)
    if cause == "stall":
        await wait_for_state(agent, task.task, "stalled")
    state = (await agent.find_task(task.task.id)).state
    outcome = None
    if has_more(source, step):
        outcome = await turn.finish(source if step == "after its end" else target)
    else:
        turn.release()
    await scene.until_idle()
    if not source.is_notified:  # nor with its end
        if cause == "stall":
            await anyio.to_thread.run_sync(agent.commands.write, task.task, b"y\n")
        else:
            task.trigger()
        with anyio.fail_after(PATIENCE):
            await agent.wait_task(task.task)
    journal = [entry.body for entry in await agent.journal(await scene.session())]
    notices = [body for body in journal if isinstance(body, Input) and body.notice and body.notice.task == task.task.id]
    reported = tuple((body.notice.event, body.address) for body in notices if body.notice)
    turns = 0 if outcome else sum(isinstance(body, Started) for body in journal)
    return Seen(outcome, reported, state, turns)


def has_more(source: Surface, step: Step) -> bool:
    """Whether the model is to reply once more: the turn goes on, or there is a notice to read."""
    return source.is_notified or step not in ("after its end", "while the last reply is written")


def expected(cell: Cell, step: Step, address: str) -> Seen:
    cause, source, target = cell
    return Seen(
        expected_outcome(source if step == "after its end" else target) if has_more(source, step) else None,
        ((EVENTS[cause], address),) if source.is_notified else (),
        "stalled" if cause == "stall" else "running",
        0 if has_more(source, step) else 2,
    )


@pytest.mark.parametrize("step", STEPS)
async def test_matches_and_stalls_are_reported_where_their_task_can_be_and_move_no_turn(
    tmp_path: Path, step: Step
) -> None:
    seen: dict[str, Seen] = {}
    wanted: dict[str, Seen] = {}
    at_once = anyio.Semaphore(20)
    async with open_surfaces(tmp_path) as home, anyio.create_task_group() as group:

        async def run(name: str, cell: Cell) -> None:
            scene = home.scene(name)
            async with at_once:
                seen[name] = await run_cell(scene, cell, step)
            (task, *_) = reversed(await home.agent.tasks(await scene.session()))
            wanted[name] = expected(cell, step, task.spec.address)
            assert task.spec.address.startswith(cell[1].address)

        for cell in cells_of(step):
            group.start_soon(run, f"{cell[0]}, {cell[1].name}, {cell[2].name}", cell)
    assert seen == wanted
