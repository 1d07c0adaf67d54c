"""What every store guarantees, shown through its port alone."""

from collections.abc import AsyncGenerator
from pathlib import Path

import anyio
import pytest

from outrider.core.errors import Refused, StaleClaim
from outrider.core.events import Begun, Body, Changed, Ended, Input, Reply, Result, Started
from outrider.core.store_port import Session, Store
from outrider.core.types import Call, Image, Reasoning, Usage
from tests.contract.stores import STORES, Opener, bodies, session_with, write

pytestmark = pytest.mark.anyio


@pytest.fixture(params=STORES)
def opener(request: pytest.FixtureRequest) -> Opener:
    return STORES[request.param]


@pytest.fixture
async def store(opener: Opener, tmp_path: Path) -> AsyncGenerator[Store]:
    async with opener(tmp_path / "home") as opened:
        yield opened


async def test_a_new_session_is_empty_and_has_no_work(store: Store) -> None:
    made = await store.create("ann", "garden", "/garden")
    assert made == Session(
        id=made.id,
        person="ann",
        name="garden",
        workspace="/garden",
        title="",
        created=made.created,
        updated=made.created,
        head=0,
        is_open=False,
        has_work=False,
    )
    assert len(made.id) == 32
    assert await store.read(made.id) == []
    assert await store.sessions_with_work() == []


async def test_creating_a_session_again_returns_it_to_the_same_person_only(store: Store) -> None:
    first = await store.create("ann", "garden", "/a")
    assert await store.create("ann", "garden", "/elsewhere") == first
    assert (await store.create("bob", "garden", "/b")).id != first.id


async def test_a_session_without_a_name_gets_an_unused_one(store: Store) -> None:
    await store.create("ann", "session-2", "/a")
    names = [(await store.create("ann", "", "/a")).name for _ in range(3)]
    assert len({*names, "session-2"}) == 4


async def test_every_kind_of_content_comes_back_as_it_was_written(store: Store) -> None:
    session = await session_with(store)
    written: list[Body] = [
        Input("日本 🌍 \u0000 tab\t", "task", (Image("b" * 64, "image/png"),), "ann", "telegram:1"),
        Started("codex"),
        Reply(
            "so",
            1,
            (Call("c1", "shell", {"a": [1, 2.5, None, {"b": "ü"}]}),),
            (Reasoning("hm", "anthropic", "{}"),),
            "m",
        ),
        Begun("c1"),
        Result("c1", "x" * 200_000, failed=True, blob="f" * 64, details="1 line"),
        Reply("done", 5, usage=Usage(10, 20), cost=0.25, cut="length"),
        Ended("done", 5),
    ]
    entries = await write(store, session.id, *written)
    assert await bodies(store, session.id) == written
    assert await store.read(session.id) == entries
    assert [entry.seq for entry in await store.read(session.id)] == [1, 2, 3, 4, 5, 6, 7]


async def test_a_journal_is_read_after_an_entry_and_in_parts(store: Store) -> None:
    session = await session_with(store, "one", "two", "three", "four")
    whole = await store.read(session.id)
    assert await store.read(session.id, after=2) == whole[2:]
    assert await store.read(session.id, after=1, limit=2) == whole[1:3]
    assert await store.read(session.id, after=4) == []
    assert await store.read("no such session") == []


async def test_an_input_is_accepted_once_by_its_key(store: Store) -> None:
    session = await session_with(store)
    first = await store.accept(session.id, Input("hello"), "telegram/7", queue=20)
    again = await store.accept(session.id, Input("hello, edited"), "telegram/7", queue=20)
    assert (first[1], again) == (True, (first[0], False))
    assert await bodies(store, session.id) == [Input("hello")]


async def test_the_same_key_in_two_sessions_is_two_inputs(store: Store) -> None:
    one, two = await session_with(store), await session_with(store)
    assert (await store.accept(one.id, Input("a"), "k", queue=20))[1]
    assert (await store.accept(two.id, Input("a"), "k", queue=20))[1]


async def test_an_entry_is_appended_once_by_its_key(store: Store) -> None:
    session = await session_with(store)
    claim = await store.claim(session.id)
    assert await store.append(session.id, Result("c1", "first"), claim.generation, "item/1")
    assert await store.append(session.id, Result("c1", "second"), claim.generation, "item/1") is None
    assert await bodies(store, session.id) == [Result("c1", "first")]


async def test_a_repeated_input_is_accepted_even_when_the_queue_is_full(store: Store) -> None:
    session = await session_with(store)
    first, _ = await store.accept(session.id, Input("a"), "k", queue=1)
    assert await store.accept(session.id, Input("a"), "k", queue=1) == (first, False)


async def test_a_full_queue_refuses_inputs_until_some_are_seen(store: Store) -> None:
    session = await session_with(store, "one", "two")
    with pytest.raises(Refused, match="2 messages are already waiting in this session"):
        await store.accept(session.id, Input("three"), None, queue=2)
    await write(store, session.id, Started(), Reply("ok", saw=1))
    assert (await store.accept(session.id, Input("three"), None, queue=2))[1]
    with pytest.raises(Refused, match="already wait"):
        await store.accept(session.id, Input("four"), None, queue=2)


async def test_a_claim_invalidates_the_previous_one(store: Store) -> None:
    session = await session_with(store, "hi")
    old = await store.claim(session.id)
    new = await store.claim(session.id)
    with pytest.raises(StaleClaim):
        await store.append(session.id, Reply("from the grave", 1), old.generation)
    with pytest.raises(StaleClaim):
        await store.append(session.id, Reply("from the future", 1), new.generation + 1)
    assert await store.append(session.id, Reply("alive", 1), new.generation)
    assert await bodies(store, session.id) == [Input("hi", person="ann"), Reply("alive", 1)]


async def test_a_stale_claim_is_refused_even_for_a_key_that_exists(store: Store) -> None:
    session = await session_with(store)
    old = await store.claim(session.id)
    await store.append(session.id, Begun("c1"), old.generation, "k")
    await store.claim(session.id)
    with pytest.raises(StaleClaim):
        await store.append(session.id, Begun("c1"), old.generation, "k")


async def test_a_claim_holds_the_session_as_it_is(store: Store) -> None:
    session = await session_with(store, "hi")
    claim = await store.claim(session.id)
    assert claim.session == await store.find("ann", session.id)


async def test_a_release_is_reported_to_the_next_owner_only(store: Store) -> None:
    session = await session_with(store, "hi")
    first = await store.claim(session.id)
    await store.release(session.id, first.generation)
    second = await store.claim(session.id)
    third = await store.claim(session.id)
    assert [claim.handed_over for claim in (first, second, third)] == [False, True, False]


async def test_a_release_by_a_former_owner_has_no_effect(store: Store) -> None:
    session = await session_with(store, "hi")
    first = await store.claim(session.id)
    await store.claim(session.id)
    await store.release(session.id, first.generation)
    assert not (await store.claim(session.id)).handed_over


async def test_stopping_an_open_turn_ends_it_and_invalidates_its_claim(store: Store) -> None:
    session = await session_with(store, "work")
    claim = await store.claim(session.id)
    await store.append(session.id, Started(), claim.generation)
    await store.accept(session.id, Input("more"), None, queue=20)
    ended = await store.stop(session.id, "the person stopped it", "half a")
    assert ended
    assert ended.body == Ended("interrupted", 3, "the person stopped it", "half a")
    with pytest.raises(StaleClaim):
        await store.append(session.id, Reply("late", 1), claim.generation)
    now = await store.find("ann", session.id)
    assert now
    assert (now.is_open, now.has_work, now.head) == (False, False, 4)
    assert await store.sessions_with_work() == []


async def test_stopping_ends_inputs_that_no_turn_has_seen(store: Store) -> None:
    session = await session_with(store, "never mind")
    ended = await store.stop(session.id, "stopped")
    assert ended
    assert ended.body == Ended("interrupted", 1, "stopped")
    assert await store.sessions_with_work() == []


async def test_stopping_an_idle_session_changes_nothing(store: Store) -> None:
    session = await session_with(store)
    claim = await store.claim(session.id)
    assert await store.stop(session.id, "stopped") is None
    assert await store.append(session.id, Started(), claim.generation)


async def test_a_setting_is_recorded_without_a_claim_and_causes_no_work(store: Store) -> None:
    session = await session_with(store)
    claim = await store.claim(session.id)
    entry = await store.change(session.id, "model", "practice:echo")
    assert (entry.seq, entry.body) == (1, Changed("model", "practice:echo"))
    assert await store.append(session.id, Started(), claim.generation)
    await store.stop(session.id, "stopped")
    await store.change(session.id, "model", "")
    assert await store.sessions_with_work() == []


@pytest.mark.parametrize("action", ["accept", "claim", "append", "stop", "change"])
async def test_writing_to_a_session_that_does_not_exist_is_refused(store: Store, action: str) -> None:
    calls = {
        "accept": lambda: store.accept("gone", Input("hi"), None, queue=20),
        "claim": lambda: store.claim("gone"),
        "append": lambda: store.append("gone", Started(), 1),
        "stop": lambda: store.stop("gone", "stopped"),
        "change": lambda: store.change("gone", "model", "x"),
    }
    with pytest.raises(Refused, match="this session does not exist"):
        await calls[action]()


async def test_sessions_wait_from_their_first_unseen_input_until_their_turn_has_ended(store: Store) -> None:
    first, second = await session_with(store, "a"), await session_with(store, "b")
    await store.accept(first.id, Input("again"), None, queue=20)
    assert await store.sessions_with_work() == [first.id, second.id]
    await write(store, first.id, Started(), Reply("ok", saw=2))
    assert await store.sessions_with_work() == [first.id, second.id]
    await write(store, first.id, Ended("done", 2))
    assert await store.sessions_with_work() == [second.id]
    await store.accept(first.id, Input("once more"), None, queue=20)
    assert await store.sessions_with_work() == [second.id, first.id]


async def test_an_input_that_a_turn_did_not_see_still_waits_when_the_turn_ends(store: Store) -> None:
    session = await session_with(store, "a")
    claim = await store.claim(session.id)
    await store.append(session.id, Started(), claim.generation)
    await store.accept(session.id, Input("b"), None, queue=20)
    await store.append(session.id, Ended("done", 1), claim.generation)
    stored = await store.find("ann", session.id)
    assert stored
    assert (stored.is_open, stored.has_work) == (False, True)
    assert await store.sessions_with_work() == [session.id]


async def test_a_session_is_found_by_its_whole_id_or_name_only(store: Store) -> None:
    session = await store.create("ann", "garden", "/a")
    for word in (session.id, "garden"):
        assert await store.find("ann", word) == session
    for word in ("", "gard", "%", session.id + "0", session.id[:1], session.id[:31]):
        assert await store.find("ann", word) is None


async def test_a_session_can_be_looked_up_by_six_characters_of_its_id(store: Store) -> None:
    session = await store.create("ann", "garden", "/a")
    for word in (session.id, "garden", session.id[:6], session.id[:12]):
        assert await store.look_up("ann", word) == session
    for word in ("", "gard", "%", session.id + "0", session.id[:1], session.id[:5], session.id[:12] + "X"):
        assert await store.look_up("ann", word) is None


async def test_a_session_of_another_person_does_not_exist_for_this_one(store: Store) -> None:
    session = await session_with(store, "my secret garden", name="garden")
    for word in (session.id, "garden", session.id[:12]):
        assert await store.look_up("bob", word) is None
    assert await store.list("bob") == []
    assert await store.search("bob", "secret") == []
    assert not await store.delete("bob", session.id)
    assert await store.find("ann", "garden")


async def test_sessions_are_listed_latest_first(store: Store) -> None:
    one, two, three = [await store.create("ann", name, "/a") for name in ("one", "two", "three")]
    await store.accept(one.id, Input("hello"), None, queue=20)
    assert [session.id for session in await store.list("ann")] == [one.id, three.id, two.id]
    assert [session.id for session in await store.list("ann", limit=2)] == [one.id, three.id]


async def test_the_title_is_the_beginning_of_the_first_input_in_one_line(store: Store) -> None:
    session = await session_with(store, "  fix\nthe   roof " + "x" * 100, "and the door")
    stored = await store.find("ann", session.id)
    assert stored
    assert stored.title == "fix the roof " + "x" * 67


async def test_a_deleted_session_is_gone_with_its_journal_and_from_search(store: Store) -> None:
    stays = await session_with(store, "secret of the hill", name="stays")
    gone = await session_with(store, "secret of the sea", name="gone")
    assert len(await store.search("ann", "secret")) == 2
    assert await store.delete("ann", gone.id)
    assert not await store.delete("ann", gone.id)
    assert await store.find("ann", "gone") is None
    assert await store.read(gone.id) == []
    assert await store.sessions_with_work() == [stays.id]
    assert [hit.session for hit in await store.search("ann", "secret")] == [stays.id]


async def test_fifty_writers_at_once_keep_the_order_of_each(store: Store) -> None:
    sessions = [await session_with(store) for _ in range(50)]
    returned: dict[str, list[int]] = {session.id: [] for session in sessions}

    async def fill(session: str) -> None:
        claim = await store.claim(session)
        for number in range(20):
            entry = await store.append(session, Result(f"c{number}", "x"), claim.generation)
            assert entry
            returned[session].append(entry.seq)

    async with anyio.create_task_group() as group:
        for session in sessions:
            group.start_soon(fill, session.id)
    expected: list[Body] = [Result(f"c{number}", "x") for number in range(20)]
    for session in sessions:
        assert returned[session.id] == list(range(1, 21))
        assert await bodies(store, session.id) == expected


async def test_inputs_of_many_senders_are_all_stored_and_each_key_once(store: Store) -> None:
    session = await session_with(store)
    fresh: list[bool] = []

    async def send(number: int) -> None:
        fresh.append((await store.accept(session.id, Input(f"{number}"), f"k{number}", queue=1000))[1])

    async with anyio.create_task_group() as group:
        for number in [*range(60), *range(60)]:
            group.start_soon(send, number)
    assert (fresh.count(True), fresh.count(False)) == (60, 60)
    entries = await store.read(session.id)
    assert [entry.seq for entry in entries] == list(range(1, 61))
    assert sorted(entry.at for entry in entries) == [entry.at for entry in entries]


async def test_a_refused_write_does_not_affect_the_writes_beside_it(store: Store) -> None:
    good, bad = await session_with(store), await session_with(store)
    generation = (await store.claim(good.id)).generation
    stale = (await store.claim(bad.id)).generation
    await store.claim(bad.id)
    refused: list[int] = []

    async def wrong() -> None:
        with pytest.raises(StaleClaim):
            await store.append(bad.id, Started(), stale)
        refused.append(1)

    async def right(number: int) -> None:
        assert await store.append(good.id, Begun(f"{number}"), generation)

    async with anyio.create_task_group() as group:
        for number in range(20):
            group.start_soon(right, number)
            group.start_soon(wrong)
    assert len(refused) == 20
    assert await store.read(bad.id) == []
    assert len(await store.read(good.id)) == 20


async def test_a_cancelled_caller_affects_no_other(store: Store) -> None:
    session = await session_with(store)
    for _ in range(20):
        with anyio.CancelScope() as scope:
            scope.cancel()
            await store.accept(session.id, Input("unheard"), None, queue=1000)
    await store.accept(session.id, Input("heard"), "k", queue=1000)
    entries = await store.read(session.id)
    assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
    assert entries[-1].body == Input("heard")


async def test_all_of_it_is_there_after_closing_and_opening_again(opener: Opener, tmp_path: Path) -> None:
    async with opener(tmp_path / "home") as store:
        session = await session_with(store, "remember this", name="garden")
        claim = await store.claim(session.id)
        await store.append(session.id, Started(), claim.generation)
        await store.release(session.id, claim.generation)
        before = (await store.find("ann", "garden"), await store.read(session.id), await store.sessions_with_work())
    async with opener(tmp_path / "home") as store:
        assert (
            await store.find("ann", "garden"),
            await store.read(session.id),
            await store.sessions_with_work(),
        ) == before
        assert [hit.session for hit in await store.search("ann", "remember")] == [session.id]
        with pytest.raises(Refused):
            await store.accept(session.id, Input("full"), None, queue=1)
        after = await store.claim(session.id)
        assert (after.generation > claim.generation, after.handed_over) == (True, True)


async def test_text_that_cannot_be_stored_is_refused(store: Store) -> None:
    session = await session_with(store)
    with pytest.raises(Refused):
        await store.accept(session.id, Input("half a pair: \ud800"), None, queue=20)
    with pytest.raises(Refused):
        await store.create("ann", "\udc80", "/a")
    assert await store.read(session.id) == []
