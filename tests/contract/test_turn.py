"""The contract of the `Turn` port: of the engine's turn over a store, and of the one in memory that unit tests use."""

from collections.abc import AsyncGenerator, Callable, Coroutine
from pathlib import Path

import anyio
import pytest
from msgspec import Struct

from outrider.core.events import Begun, Body, Input, Reply, Result, Started
from outrider.core.ports import Turn
from outrider.core.types import Call
from outrider.engine.event_hub import EventHub
from outrider.engine.turn import OpenTurn
from outrider.store.sqlite import open_store
from tests.support.turns import MemoryTurn

pytestmark = pytest.mark.anyio
CALL = Call("x1", "shell", {"command": "ls"})


class TurnHarness(Struct, frozen=True):
    """A turn with one input that has started, and another writer of its journal."""

    turn: Turn
    append: Callable[[Body], Coroutine[None, None, None]]


@pytest.fixture(params=["engine", "memory"])
async def harness(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[TurnHarness]:
    if request.param == "memory":
        memory = MemoryTurn()

        async def append(body: Body) -> None:
            memory.append(body)

        yield TurnHarness(memory, append)
        return
    async with open_store(tmp_path / "home") as store:
        session = await store.create("ann", "", "/a")
        await store.seed(session.id, [Input("go"), Started("native")])
        claim = await store.claim(session.id)
        turn = OpenTurn(store, EventHub(store), claim.session, claim.generation)
        await turn.refresh()

        async def accept(body: Body) -> None:
            assert isinstance(body, Input)
            await store.accept(session.id, body, None, queue=20)
            turn.notify()

        yield TurnHarness(turn, accept)


async def test_a_recorded_entry_is_in_state_and_transcript_at_once(harness: TurnHarness) -> None:
    turn = harness.turn
    entry = await turn.record(Reply("", 1, (CALL,)))
    await turn.record(Begun(CALL.id))
    assert entry
    assert (entry.seq, turn.state().head, turn.state().begun) == (3, 4, {CALL.id})
    await turn.record(Result(CALL.id, "a.txt"))
    assert (turn.state().calls, len(turn.transcript().after(0))) == ((), 3)


async def test_a_key_is_recorded_once(harness: TurnHarness) -> None:
    assert await harness.turn.record(Reply("one", 1), key="k")
    assert await harness.turn.record(Reply("two", 1), key="k") is None
    assert harness.turn.state().head == 3


async def test_entries_of_other_writers_are_seen_after_a_refresh(harness: TurnHarness) -> None:
    await harness.append(Input("more"))
    assert harness.turn.state().newest_input == 1
    await harness.turn.refresh()
    assert harness.turn.state().newest_input == 3


async def test_waiting_for_entries_ends_when_another_writer_adds_one(harness: TurnHarness) -> None:
    await harness.turn.refresh()
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(harness.append, Input("more"))
            while harness.turn.state().newest_input == 1:
                await harness.turn.wait_for_entries()
    assert harness.turn.state().newest_input == 3
