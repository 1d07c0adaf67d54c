"""What every store guarantees about tasks, shown through its port alone."""

from collections.abc import AsyncGenerator
from pathlib import Path
from string import ascii_lowercase

import anyio
import pytest
from msgspec.structs import replace

from outrider.core.errors import Refused
from outrider.core.events import Ended, Input, Reply, Started
from outrider.core.store_port import TaskEnd
from outrider.core.tasks import (
    KeyedNotice,
    NoticeEvent,
    Notify,
    ProcessIdentity,
    Task,
    TaskNotice,
    TaskSpec,
    TaskState,
    render_notice,
)
from tests.contract.stores import STORES, Opener, WholeStore, bodies, session_with, write
from tests.support.task_child import notice_about

pytestmark = pytest.mark.anyio

PROCESS = ProcessIdentity(4711, 123_456_789, "boot-1")
DONE = TaskEnd("succeeded", 0, "", 1_700_000_000_000)
FAILED = TaskEnd("failed", 2, "", 1_700_000_000_000)


@pytest.fixture(params=STORES)
def opener(request: pytest.FixtureRequest) -> Opener:
    return STORES[request.param]


@pytest.fixture
async def store(opener: Opener, tmp_path: Path) -> AsyncGenerator[WholeStore]:
    async with opener(tmp_path / "home") as opened:
        yield opened


def command_task(call: str = "c1", notify: Notify = "always", *, is_awaited: bool = False) -> TaskSpec:
    return TaskSpec(
        kind="command", call=call, command="make", address="telegram:1", notify=notify, is_awaited=is_awaited
    )


async def task_in(store: WholeStore, session: str, spec: TaskSpec | None = None) -> Task:
    """A new, running task."""
    task, is_new = await store.create_task(session, spec or command_task(), max_open=1000)
    assert is_new
    return await store.mark_task_started(task.id, PROCESS)


def notice_input(text: str, person: str = "ann") -> Input:
    notice = notice_about(text)
    return Input(render_notice(notice), "task", person=person, address="telegram:1", notice=notice)


async def test_a_new_task_is_queued(store: WholeStore) -> None:
    session = await store.create("ann", "garden", "/garden")
    spec = TaskSpec(
        kind="session",
        call="c1",
        command="weed 日本 \u0000",
        description="weeding",
        address="telegram:1",
        notify="failures",
        is_awaited=True,
        watch="done|gone",
        ceiling=1.5,
        workdir="beds",
        stdin="",
        keeps_stdin_open=True,
        grants=("network", "write:/seeds"),
        model="practice:echo",
        tools=("read", "list"),
        steps=7,
    )
    made, is_new = await store.create_task(session.id, spec, max_open=1)
    assert is_new
    assert made == Task(
        id=made.id,
        session=session.id,
        person="ann",
        workspace="/garden",
        spec=spec,
        state="queued",
        created=made.created,
    )
    assert made.created >= session.created
    assert await store.find_task("ann", made.id) == made
    assert await store.sessions_with_work() == []


async def test_ids_are_short_and_easy_to_type(store: WholeStore) -> None:
    session = await session_with(store)
    made = [(await store.create_task(session.id, command_task(f"c{n}"), max_open=100))[0].id for n in range(50)]
    assert len(set(made)) == 50
    assert all(id.startswith("t-") and len(id) == 8 and set(id[2:]) <= set(ascii_lowercase + "234567") for id in made)


async def test_one_call_starts_one_task(store: WholeStore) -> None:
    one, two = await session_with(store), await session_with(store)
    first = await task_in(store, one.id)
    assert await store.create_task(one.id, replace(command_task(), command="other"), max_open=0) == (first, False)
    assert (await store.create_task(two.id, command_task(), max_open=1))[1]


async def test_one_call_starts_one_task_even_when_many_ask_at_once(store: WholeStore) -> None:
    session = await session_with(store)
    made: list[tuple[Task, bool]] = []

    async def ask() -> None:
        made.append(await store.create_task(session.id, command_task(), max_open=1))

    async with anyio.create_task_group() as group:
        for _ in range(20):
            group.start_soon(ask)
    assert sorted(is_new for _, is_new in made) == [False] * 19 + [True]
    assert len({task.id for task, _ in made}) == 1


async def test_a_session_with_too_many_open_tasks_gets_no_other_until_one_ends(store: WholeStore) -> None:
    session, other = await session_with(store), await session_with(store)
    first = await task_in(store, session.id, command_task("c1"))
    await task_in(store, session.id, command_task("c2"))
    with pytest.raises(Refused, match="2 tasks of this session have not ended"):
        await store.create_task(session.id, command_task("c3"), max_open=2)
    assert (await store.create_task(other.id, command_task("c3"), max_open=2))[1]
    await store.end_task_and_notify(first.id, DONE, notice_about("done"))
    assert (await store.create_task(session.id, command_task("c3"), max_open=2))[1]


async def test_a_task_runs_as_a_process_or_as_a_child_session(store: WholeStore) -> None:
    session = await session_with(store)
    command, _ = await store.create_task(session.id, command_task("c1"), max_open=9)
    asked, _ = await store.create_task(session.id, replace(command_task("c2"), kind="session"), max_open=9)
    running = await store.mark_task_started(command.id, PROCESS)
    child = await store.mark_task_started(asked.id, None, "child-session")
    assert running == replace(command, state="running", process=PROCESS)
    assert child == replace(asked, state="running", child="child-session")
    assert [await store.find_task("ann", task.id) for task in (command, asked)] == [running, child]


async def test_the_open_task_of_a_child_session_is_found_by_it(store: WholeStore) -> None:
    session = await session_with(store)
    task, _ = await store.create_task(session.id, command_task(), max_open=9)
    await task_in(store, session.id, command_task("c2"))
    task = await store.mark_task_started(task.id, None, "child")
    assert [await store.task_of_child(id) for id in ("child", "", "other")] == [task, None, None]
    await store.end_task_and_notify(task.id, DONE, notice_about("done"))
    assert await store.task_of_child("child") is None


@pytest.mark.parametrize("action", ["start", "detach", "end", "update"])
async def test_a_change_to_a_task_that_does_not_exist_is_refused(store: WholeStore, action: str) -> None:
    calls = {
        "start": lambda: store.mark_task_started("t-gone22", PROCESS),
        "detach": lambda: store.detach_task("t-gone22", "always"),
        "end": lambda: store.end_task_and_notify("t-gone22", DONE, notice_about("done")),
        "update": lambda: store.update_task_and_notify("t-gone22", "stalled", notice_about("hm"), "k"),
    }
    with pytest.raises(Refused, match="this task does not exist"):
        await calls[action]()


async def test_a_task_in_a_session_that_does_not_exist_is_refused(store: WholeStore) -> None:
    with pytest.raises(Refused, match="this session does not exist"):
        await store.create_task("gone", command_task(), max_open=9)


async def test_the_end_of_a_task_is_an_input_to_its_session(store: WholeStore) -> None:
    session = await session_with(store)
    task = await task_in(store, session.id)
    assert await store.sessions_with_work() == []
    ended = await store.end_task_and_notify(task.id, FAILED, notice_about("[it failed]"))
    assert ended == replace(task, state="failed", exit_code=2, ended=FAILED.ended, is_delivered=True)
    assert await store.find_task("ann", task.id) == ended
    assert await bodies(store, session.id) == [notice_input("[it failed]")]
    assert await store.sessions_with_work() == [session.id]
    stored = await store.find("ann", session.id)
    assert stored
    assert (stored.head, stored.has_work, stored.is_open) == (1, True, False)
    assert stored.title.startswith("[Task [it failed] succeeded]")


async def test_a_task_ends_once(store: WholeStore) -> None:
    session = await session_with(store)
    task = await task_in(store, session.id)
    ended = await store.end_task_and_notify(task.id, TaskEnd("killed", None, "you said so", 5), notice_about("killed"))
    assert await store.end_task_and_notify(task.id, DONE, notice_about("done")) == ended
    assert (ended.state, ended.exit_code, ended.why, ended.ended) == ("killed", None, "you said so", 5)
    assert await bodies(store, session.id) == [notice_input("killed")]


async def test_the_end_is_accepted_once_under_a_key_that_names_the_task(store: WholeStore) -> None:
    session = await session_with(store)
    task = await task_in(store, session.id)
    entry, _ = await store.accept(session.id, notice_input("reported before"), f"task/{task.id}", queue=20)
    assert (await store.end_task_and_notify(task.id, DONE, notice_about("done"))).is_delivered
    assert await store.read(session.id) == [entry]


@pytest.mark.parametrize(
    ("spec", "end", "is_noticed", "is_delivered"),
    [
        (command_task(notify="always"), DONE, True, True),
        (command_task(notify="always"), FAILED, True, True),
        (command_task(notify="failures"), DONE, False, False),
        (command_task(notify="failures"), FAILED, True, True),
        (command_task(notify="never"), FAILED, False, False),
        (command_task(notify="always", is_awaited=True), FAILED, False, True),
    ],
    ids=["always", "always, failed", "failures only", "failures only, failed", "never", "awaited"],
)
async def test_an_end_is_reported_where_that_was_asked_for(
    store: WholeStore, spec: TaskSpec, end: TaskEnd, is_noticed: bool, is_delivered: bool
) -> None:
    session = await session_with(store)
    task = await task_in(store, session.id, spec)
    ended = await store.end_task_and_notify(task.id, end, notice_about("over"))
    assert ended.is_delivered == is_delivered
    assert await bodies(store, session.id) == ([notice_input("over")] if is_noticed else [])
    assert await store.sessions_with_work() == ([session.id] if is_noticed else [])


async def test_a_detached_task_is_reported(store: WholeStore) -> None:
    session = await session_with(store)
    task = await task_in(store, session.id, command_task(notify="never", is_awaited=True))
    detached = await store.detach_task(task.id, "always")
    assert detached == replace(task, spec=command_task(notify="always", is_awaited=False))
    assert await store.find_task("ann", task.id) == detached
    assert (await store.end_task_and_notify(task.id, DONE, notice_about("done"))).is_delivered
    assert await bodies(store, session.id) == [notice_input("done")]


async def test_a_task_that_ended_while_awaited_does_not_change(store: WholeStore) -> None:
    session = await session_with(store)
    task = await task_in(store, session.id, command_task(is_awaited=True))
    ended = await store.end_task_and_notify(task.id, DONE, notice_about("done"))
    assert await store.detach_task(task.id, "always") == ended
    assert await store.mark_task_started(task.id, ProcessIdentity(1, 2, "other")) == ended
    assert ended.spec.is_awaited
    assert await bodies(store, session.id) == []


async def test_an_end_is_returned_or_reported_but_not_both_whether_detached_or_ended_first(store: WholeStore) -> None:
    session = await session_with(store)
    tasks = [await task_in(store, session.id, command_task(f"c{n}", is_awaited=True)) for n in range(40)]
    detached: dict[str, Task] = {}

    async def detach(task: str) -> None:
        detached[task] = await store.detach_task(task, "always")

    async with anyio.create_task_group() as group:
        for number, task in enumerate(tasks):
            end = (store.end_task_and_notify, task.id, DONE, notice_about(task.id))
            if number % 2:
                group.start_soon(detach, task.id)
                group.start_soon(*end)
            else:
                group.start_soon(*end)
                group.start_soon(detach, task.id)
    notices = sorted(
        body.notice.task for body in await bodies(store, session.id) if isinstance(body, Input) and body.notice
    )
    assert notices == sorted(id for id, task in detached.items() if task.is_open)
    assert all(task.is_delivered for task in await store.list_tasks("ann"))


async def test_a_notice_invalidates_no_claim_and_ignores_the_limit_of_the_queue(store: WholeStore) -> None:
    session = await session_with(store, *(f"{n}" for n in range(20)))
    claim = await store.claim(session.id)
    task = await task_in(store, session.id)
    with pytest.raises(Refused):
        await store.accept(session.id, Input("full"), None, queue=20)
    await store.update_task_and_notify(task.id, "stalled", notice_about("[it waits]"), "note/1")
    await store.end_task_and_notify(task.id, DONE, notice_about("[done]"))
    assert (await bodies(store, session.id))[20:] == [notice_input("[it waits]"), notice_input("[done]")]
    assert await store.append(session.id, Started(), claim.generation)


async def test_a_notice_during_a_turn_waits_for_the_next_step(store: WholeStore) -> None:
    session = await session_with(store, "build it")
    await write(store, session.id, Started())
    task = await task_in(store, session.id)
    await store.end_task_and_notify(task.id, DONE, notice_about("done"))
    await write(store, session.id, Reply("it runs", saw=1), Ended("done", 2))
    assert await store.sessions_with_work() == [session.id]


async def test_an_update_of_a_running_task_is_reported_once_by_its_key(store: WholeStore) -> None:
    session = await session_with(store)
    task = await task_in(store, session.id)
    stalled = await store.update_task_and_notify(task.id, "stalled", notice_about("it waits"), "note/1")
    assert stalled == replace(task, state="stalled", notices=1)
    again = await store.update_task_and_notify(task.id, "running", notice_about("it waits"), "note/1")
    assert again == replace(task, state="running", notices=1)
    assert await store.update_task_and_notify(task.id, "running", None, "note/2") == again
    assert await store.update_task_and_notify(task.id, "running", notice_about("it wrote"), "note/3") == replace(
        again, notices=2
    )
    assert await bodies(store, session.id) == [notice_input("it waits"), notice_input("it wrote")]
    assert await store.sessions_with_work() == [session.id]


def keyed(task: Task, event: NoticeEvent, key: str, state: TaskState = "running") -> KeyedNotice:
    notice = TaskNotice(task=task.id, event=event, state=state, command="make", output=("E1",))
    return KeyedNotice(notice, f"task/{task.id}/{key}")


@pytest.mark.parametrize(
    ("notify", "is_awaited", "reports_end", "reports_matches"),
    [
        ("always", False, True, True),
        ("failures", False, False, True),
        ("never", False, False, True),
        ("always", True, False, False),
    ],
)
async def test_an_end_and_the_last_matches_are_recorded_at_once_and_each_once(
    store: WholeStore, notify: Notify, is_awaited: bool, reports_end: bool, reports_matches: bool
) -> None:
    session = await session_with(store)
    task = await task_in(store, session.id, command_task(notify=notify, is_awaited=is_awaited))
    last = keyed(task, "matched", "watch/9")
    ended = await store.end_task_and_notify(task.id, DONE, notice_about("done"), last)
    assert (ended.is_delivered, ended.notices) == (reports_end or is_awaited, int(reports_matches))
    assert await store.end_task_and_notify(task.id, DONE, notice_about("done"), last) == ended
    notices = [body.notice for body in await bodies(store, session.id) if isinstance(body, Input)]
    assert notices == [last.notice] * reports_matches + [notice_about("done")] * reports_end
    assert await store.notice_keys(session.id, task.id) == [last.key] * reports_matches


async def test_matches_that_were_reported_before_the_end_are_not_reported_with_it(store: WholeStore) -> None:
    session = await session_with(store)
    task, other = await task_in(store, session.id), await task_in(store, session.id, command_task("c2"))
    last = keyed(task, "matched", "watch/9")
    updated = await store.update_task_and_notify(task.id, None, last.notice, last.key)
    assert updated == replace(task, notices=1)
    ended = await store.end_task_and_notify(task.id, DONE, notice_about("done"), last)
    assert ended.notices == 1
    assert await store.notice_keys(session.id, task.id) == [last.key]
    assert await store.notice_keys(session.id, other.id) == []


@pytest.mark.parametrize(
    ("notify", "is_awaited", "is_reported"),
    [("always", False, True), ("failures", False, True), ("never", False, False), ("always", True, False)],
)
async def test_a_stall_is_recorded_and_told_where_a_failure_would_be(
    store: WholeStore, notify: Notify, is_awaited: bool, is_reported: bool
) -> None:
    session = await session_with(store)
    task = await task_in(store, session.id, command_task(notify=notify, is_awaited=is_awaited))
    stall = keyed(task, "stalled", "stalled/9", "stalled")
    stalled = await store.update_task_and_notify(task.id, "stalled", stall.notice, stall.key)
    assert stalled == replace(task, state="stalled", notices=int(is_reported))
    assert await store.sessions_with_work() == [session.id] * is_reported
    detached = await store.detach_task(task.id, "always")
    assert detached.state == ("running" if is_awaited else "stalled")


async def test_a_task_that_has_ended_is_not_updated(store: WholeStore) -> None:
    session = await session_with(store)
    task = await task_in(store, session.id)
    ended = await store.end_task_and_notify(task.id, DONE, notice_about("done"))
    assert await store.update_task_and_notify(task.id, "stalled", notice_about("it waits"), "note/1") == ended
    assert await bodies(store, session.id) == [notice_input("done")]


@pytest.mark.parametrize("state", ["queued", "running", "stalled"])
async def test_a_task_cannot_end_in_an_open_state(store: WholeStore, state: TaskState) -> None:
    session = await session_with(store)
    task = await task_in(store, session.id)
    with pytest.raises(ValueError, match=state):
        await store.end_task_and_notify(task.id, TaskEnd(state, None, "", 1), notice_about("over"))
    assert await store.find_task("ann", task.id) == task


async def test_a_task_is_found_by_its_id_and_its_beginning(store: WholeStore) -> None:
    session = await session_with(store)
    task = await task_in(store, session.id)
    for word in (task.id, task.id[:6]):
        assert await store.find_task("ann", word) == task
    for word in ("", "t-", task.id[:5], "%", "_", task.id + "a", task.id[2:], "{", "t-{"):
        assert await store.find_task("ann", word) is None


async def test_a_task_of_another_person_does_not_exist_for_this_one(store: WholeStore) -> None:
    session, other = await session_with(store), await session_with(store, person="bob")
    task, theirs = await task_in(store, session.id), await task_in(store, other.id)
    assert await store.find_task("bob", task.id) is None
    assert await store.find_task("bob", task.id[:6]) is None
    assert await store.list_tasks("bob") == [theirs]
    assert await store.list_tasks("bob", session.id) == []
    assert await store.list_tasks("bob", session.id, open_only=True) == []
    assert {each.id for each in await store.open_tasks()} == {task.id, theirs.id}


async def test_tasks_are_listed_latest_first(store: WholeStore) -> None:
    one, two = await session_with(store), await session_with(store)
    tasks = [
        await task_in(store, session.id, command_task(f"c{n}")) for n, session in enumerate([one, two, one, two, one])
    ]
    tasks[0] = await store.end_task_and_notify(tasks[0].id, DONE, notice_about("done"))
    tasks[3] = await store.end_task_and_notify(tasks[3].id, DONE, notice_about("done"))
    zero, first, second, third, fourth = tasks
    assert await store.list_tasks("ann") == [fourth, third, second, first, zero]
    assert await store.list_tasks("ann", limit=2) == [fourth, third]
    assert await store.list_tasks("ann", one.id) == [fourth, second, zero]
    assert await store.list_tasks("ann", open_only=True) == [fourth, second, first]
    assert await store.list_tasks("ann", open_only=True, limit=1) == [fourth]
    assert await store.list_tasks("ann", two.id, open_only=True) == [first]
    assert {task.id for task in await store.open_tasks()} == {first.id, second.id, fourth.id}


async def test_a_thousand_open_tasks_are_all_there(store: WholeStore) -> None:
    sessions = [await session_with(store) for _ in range(10)]

    async def fill(session: str) -> None:
        for number in range(100):
            await task_in(store, session, command_task(f"c{number}"))

    async with anyio.create_task_group() as group:
        for session in sessions:
            group.start_soon(fill, session.id)
    assert len({task.id for task in await store.open_tasks()}) == 1000
    assert len(await store.list_tasks("ann", open_only=True, limit=5000)) == 1000
    assert len(await store.list_tasks("ann", sessions[3].id, open_only=True)) == 100


async def test_a_deleted_session_is_gone_with_its_tasks_and_permissions(store: WholeStore) -> None:
    remaining, gone = await session_with(store), await session_with(store)
    task, lost = await task_in(store, remaining.id), await task_in(store, gone.id)
    stays = [
        await store.add_permission("ann", "session", remaining.id, "network"),
        await store.add_permission("ann", "workspace", "/folder", "network"),
    ]
    await store.add_permission("ann", "session", gone.id, "network")
    assert await store.delete("ann", gone.id)
    assert await store.list_tasks("ann") == [task] == await store.open_tasks()
    assert await store.list_permissions("ann") == stays
    with pytest.raises(Refused, match="this task does not exist"):
        await store.end_task_and_notify(lost.id, DONE, notice_about("done"))


async def test_all_of_it_is_there_after_closing_and_opening_again(opener: Opener, tmp_path: Path) -> None:
    async with opener(tmp_path / "home") as store:
        session = await session_with(store)
        await store.detach_task((await task_in(store, session.id, command_task("c1", is_awaited=True))).id, "failures")
        other = await task_in(store, session.id, command_task("c2"))
        await store.end_task_and_notify(other.id, FAILED, notice_about("failed"))
        await store.add_permission("ann", "session", session.id, "network")
        before = (await store.list_tasks("ann"), await store.open_tasks(), await store.list_permissions("ann"))
    async with opener(tmp_path / "home") as store:
        assert (await store.list_tasks("ann"), await store.open_tasks(), await store.list_permissions("ann")) == before
        assert [task.state for task in before[0]] == ["failed", "running"]
        assert (await store.create_task(session.id, command_task("c1"), max_open=0))[0] == before[1][0]


async def test_a_task_that_cannot_be_stored_is_refused(store: WholeStore) -> None:
    session = await session_with(store)
    with pytest.raises(Refused):
        await store.create_task(session.id, replace(command_task(), command="half a pair: \ud800"), max_open=9)
    with pytest.raises(Refused):
        await store.create_task(session.id, replace(command_task(), ceiling=float("inf")), max_open=9)
    task = await task_in(store, session.id)
    with pytest.raises(Refused):
        await store.end_task_and_notify(task.id, DONE, notice_about("half a pair: \ud800"))
    assert (await store.find_task("ann", task.id), await store.read(session.id)) == (task, [])
