"""A home of Outrider 0.1.0 opens as it was left: stored names are part of the format and outlive names in the code."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from outrider.core.approvals import Permission
from outrider.core.events import (
    Answered,
    Asked,
    Begun,
    Bound,
    Changed,
    Compacted,
    Ended,
    Input,
    Reply,
    Result,
    Resumed,
    Started,
)
from outrider.core.store_port import Key, KeySpec, SpendLimit, TaskEnd
from outrider.core.tasks import ProcessIdentity, Task, TaskSpec
from outrider.core.types import Call, Image, Reasoning, Usage
from outrider.store.sqlite import open_store
from outrider.store.webhooks import WebhookDelivery

pytestmark = [pytest.mark.anyio, pytest.mark.promise("L10")]

DUMP = Path(__file__).parents[1] / "support" / "home_0_1_0.sql"
SESSION = "5fd73d439943eb3d278945e8427ed24a"
JOURNAL = [
    Input(
        "weed the beds 日本",
        images=(Image("b" * 64, "image/png"),),
        person="ann",
        address="http:1",
        payer="abcdefgh",
    ),
    Started("native", "practice:echo"),
    Resumed(),
    Reply(
        "so",
        1,
        (Call("c1", "shell", {"command": "weed"}),),
        (Reasoning("hm", "anthropic", '{"signature":"x"}'),),
        "m",
        Usage(10, 20),
        0.25,
    ),
    Asked("a1", "may I?", "c1", ("once", "no"), ("network",)),
    Answered("a1", "once", "ann"),
    Begun("c1"),
    Result("c1", "done", details="1 line"),
    Bound("codex", "thread-1", "turn-1", 5),
    Compacted(3, "a summary", Usage(1, 2), 0.5),
    Changed("model", "practice:echo"),
    Reply("done", 11),
    Ended("done", 11),
    Input("[it failed]", "task", person="ann", address="http:1"),
]
INTERACTIVE = Task(
    id="t-ynnrot",
    session=SESSION,
    person="ann",
    workspace="/garden",
    spec=TaskSpec(
        kind="command",
        call="c2",
        command="python3 -i",
        description="a console",
        address="http:1",
        is_awaited=True,
        watch="done|gone",
        ceiling=60.0,
        workdir="beds",
        stdin="1+1\n",
        keeps_stdin_open=True,
        grants=("network",),
    ),
    state="running",
    created=1_750_000_015_000,
    process=ProcessIdentity(4711, 123_456_789, "boot-1"),
)
FAILED = Task(
    id="t-mcfv54",
    session=SESSION,
    person="ann",
    workspace="/garden",
    spec=TaskSpec(kind="command", call="c3", command="make", address="http:1", notify="failures"),
    state="failed",
    created=1_750_000_016_000,
    exit_code=2,
    ended=1_750_000_100_000,
    is_delivered=True,
)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    with closing(sqlite3.connect(tmp_path / "store.db")) as db:
        db.executescript(DUMP.read_text("utf-8"))
        db.execute("PRAGMA journal_mode = WAL")
    return tmp_path


async def test_a_home_of_0_1_0_is_upgraded_and_holds_everything(home: Path) -> None:
    async with open_store(home) as store:
        upgraded = f"from version 5 to 7; the previous one is kept as {home / 'store.db.before-7'}."
        assert (store.notices, await store.check()) == ((f"The store was upgraded {upgraded}",), [])
        (session,) = await store.list("ann")
        assert (session.id, session.name, session.workspace, session.head) == (SESSION, "garden", "/garden", 14)
        assert session.identity is None
        assert [entry.body for entry in await store.read(SESSION)] == JOURNAL
        assert await store.sessions_with_work() == [SESSION]
        assert await store.list_tasks("ann") == [FAILED, INTERACTIVE]
        assert await store.list_permissions("ann") == [
            Permission("g-iffwel", "ann", "session", SESSION, "host", 1_750_000_019_000),
            Permission("g-cans2p", "ann", "workspace", "/garden", "network", 1_750_000_018_000),
        ]
        spec = KeySpec("laptop", "ann", ("chat", "read"), rate=60, concurrent=3, spend=SpendLimit(2.5, "month"))
        assert await store.list_keys() == [
            Key("abcdefgh", spec, b"d" * 32, created=1_750_000_020_000, used=1_750_000_021_000)
        ]
        assert await store.spent("abcdefgh") == 0.75
        webhook = WebhookDelivery(
            "wh_6c0dd3b1d00294db9acb5c1894b04850", SESSION, "ann", 1, 1_750_000_022_000, tries=1, due=77, why="500"
        )
        assert await store.pending_webhooks() == [webhook]
        assert [hit.seq for hit in await store.search("ann", "weed")] == [1]


async def test_a_home_of_0_1_0_is_continued(home: Path) -> None:
    async with open_store(home) as store:
        assert (await store.accept(SESSION, Input("again"), "telegram/7", queue=20))[1] is False
        claim = await store.claim(SESSION)
        assert await store.append(SESSION, Started(), claim.generation)
        detached = await store.detach_task(INTERACTIVE.id, "always")
        assert (detached.spec.is_awaited, detached.spec.keeps_stdin_open) == (False, True)
        ended = await store.end_task_and_notify(INTERACTIVE.id, TaskEnd("succeeded", 0, "", 1), "done")
        assert (ended.is_delivered, await store.check()) == (True, [])
    async with open_store(home) as store:
        assert await store.find_task("ann", INTERACTIVE.id) == ended


async def test_keys_of_the_owner_keep_the_right_to_answer_and_those_of_others_do_not_have_it(tmp_path: Path) -> None:
    keys = {
        "own": ("owner", '["chat","read"]'),
        "reader": ("owner", '["read"]'),
        "first": ("owner", '["admin"]'),
        "member": ("ann", '["chat","read"]'),
    }
    with closing(sqlite3.connect(tmp_path / "store.db")) as db:
        db.executescript(DUMP.read_text("utf-8"))
        db.execute("DELETE FROM keys")
        for name, (person, scopes) in keys.items():
            values = (name, name, person, scopes, None, None, b"d", 1, 0, 0, None, "total")
            db.execute(f"INSERT INTO keys VALUES ({', '.join('?' * len(values))})", values)
        db.commit()
        db.execute("PRAGMA journal_mode = WAL")
    async with open_store(tmp_path) as store:
        scopes = {key.spec.name: key.spec.scopes for key in await store.list_keys()}
    assert scopes == {
        "own": ("chat", "read", "approve"),
        "reader": ("read",),
        "first": ("admin",),
        "member": ("chat", "read"),
    }
