"""The cost of recording entries, compared with bare SQLite at the same durability; and the cost of recovery."""

import os
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import anyio

import outrider
from bench.table import Row, progress
from bench.turns import InstantModel
from outrider.core.events import Ended, Input, Reply, Started
from outrider.core.store_port import Store
from outrider.store.sqlite import open_store


def _rate(count: int, seconds: float) -> str:
    return f"{count / seconds:,.0f} /s ({seconds / count * 1000:.3f} ms each)"


async def appends(count: int) -> list[Row]:
    """One by one, and from 50 sessions at once."""
    rows = list(_bare(count))
    with tempfile.TemporaryDirectory() as name:
        async with open_store(Path(name), label="bench") as store:
            progress("journal appends")
            rows.append(Row("journal", "append, one by one", _rate(count, await _append(store, 1, count))))
            rows.append(Row("journal", "append, 50 sessions", _rate(count * 10, await _append(store, 50, count // 5))))
    return rows


async def _append(store: Store, sessions: int, each: int) -> float:
    async def write(name: str) -> None:
        session = await store.create("owner", name, "/")
        claim = await store.claim(session.id)
        for _ in range(each):
            await store.append(session.id, Reply("some words of a reply", 1), claim.generation)

    start = time.perf_counter()
    async with anyio.create_task_group() as group:
        for n in range(sessions):
            group.start_soon(write, f"{sessions}-{n}")
    return time.perf_counter() - start


def _bare(count: int) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as name:
        database = sqlite3.connect(os.path.join(name, "bare.db"), isolation_level=None)
        database.execute("pragma journal_mode=wal")
        database.execute("pragma synchronous=full")
        database.execute("create table entries(n integer primary key, body blob)")
        start = time.perf_counter()
        for n in range(count):
            database.execute("insert into entries values(?, ?)", (n, b"some words of a reply"))
        yield Row("journal", "baseline: bare sqlite3, one commit each", _rate(count, time.perf_counter() - start))
        database.close()


async def _fill(store: Store, name: str, turns: int, workspace: str, is_open: bool) -> None:
    session = await store.create("owner", name, workspace)
    claim = await store.claim(session.id)
    seq = 0
    for _ in range(turns):
        await store.accept(session.id, Input("a question of some length"), None, 20)
        await store.append(session.id, Started(), claim.generation)
        seq += 2
        await store.append(session.id, Reply("an answer of some length, too", seq), claim.generation)
        await store.append(session.id, Ended("done", seq), claim.generation)
        seq += 2
    if is_open:
        await store.accept(session.id, Input("one last question"), None, 20)
        await store.append(session.id, Started(), claim.generation)


async def recovery() -> list[Row]:
    """Opening a home whose sessions were cut off in mid-turn, until every turn is finished."""
    rows: list[Row] = []
    for what, sessions, turns in (("one session of 10,000 entries", 1, 2500), ("1,000 sessions", 1000, 1)):
        with tempfile.TemporaryDirectory() as name:
            home, work = Path(name) / "home", Path(name) / "work"
            work.mkdir()
            progress(f"filling {what}")
            async with open_store(home, label="bench") as store, anyio.create_task_group() as group:
                for n in range(sessions):
                    group.start_soon(_fill, store, f"s{n}", turns, str(work), True)
            progress(f"recovering {what}")
            start = time.perf_counter()
            async with outrider.open(home, model=InstantModel(), workspace=work) as agent:
                opened = time.perf_counter() - start
                unfinished = await agent.resume_all()
                for session in unfinished:
                    await agent.wait(session) if (await agent.find(session.id)).has_work else None
                done = time.perf_counter() - start
            if len(unfinished) != sessions:
                raise RuntimeError(f"{len(unfinished)} of {sessions} sessions were resumed")
            rows.append(Row("recovery", f"{what}: home open", f"{opened * 1000:.0f} ms"))
            rows.append(Row("recovery", f"{what}: every open turn finished", f"{done * 1000:.0f} ms"))
    return rows
