"""Sessions as event streams: resumable, with many followers, and never delaying the turn."""

import gc
import json
import re
import socket
import tracemalloc
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import httpx2
import pytest

import outrider
from outrider.app.agent import Agent
from outrider.channels.http.sessions import ENDPOINTS
from outrider.core.events import Delta, Reply
from outrider.core.ports import Emit, Model
from outrider.core.prompt import Prompt
from outrider.core.types import ModelTraits
from outrider.testing.scripted_model import ScriptedModel, call, says, stalls
from tests.support.http import client, key_of, serving

pytestmark = pytest.mark.anyio

Events = list[bytes]


@asynccontextmanager
async def serving_home(folder: Path, model: Model) -> AsyncGenerator[tuple[Agent, str]]:
    async with outrider.open(folder / "home", model=model) as agent, serving(agent, ENDPOINTS) as url:
        yield agent, url


async def began(owner: httpx2.AsyncClient, text: str = "go") -> str:
    """The path of a session with this message."""
    session = (await owner.post("/v1/sessions")).json()["id"]
    await owner.post(f"/v1/sessions/{session}/inputs", json={"text": text})
    return f"/v1/sessions/{session}"


async def follow(
    owner: httpx2.AsyncClient, path: str, after: str = "", is_enough: Callable[[Events], bool] = lambda events: False
) -> Events:
    """Whole events as received, until the stream ends or there are enough; then the connection is cut."""
    events: Events = []
    rest = b""
    headers = {"Last-Event-ID": after} if after else {}
    with anyio.fail_after(60):
        async with owner.stream("GET", f"{path}/events?until=idle", headers=headers) as answer:
            assert answer.status_code == 200, await answer.aread()
            async for piece in answer.aiter_raw():
                *whole, rest = (rest + piece).split(b"\n\n")
                events += whole
                if is_enough(events):
                    break
    return events


def entries(events: Events) -> Events:
    return [one for one in events if one.startswith(b"id: ")]


def id_of(one: bytes) -> str:
    return one.partition(b"\n")[0].removeprefix(b"id: ").decode()


def data_of(one: bytes) -> dict[str, Any]:
    return json.loads(one.split(b"data: ")[1])


@pytest.mark.promise("L8")
async def test_a_client_that_is_cut_repeatedly_gets_the_same_bytes_as_one_that_is_not(
    tmp_path: Path,
) -> None:
    steps = [says(f"step {n}: ünïcode\nand lines", call("list", path=".", depth=n % 3 + 1)) for n in range(30)]
    hold = stalls()
    async with serving_home(tmp_path, ScriptedModel(hold, *steps, says("done"))) as (_, url), client(url) as owner:
        path = await began(owner)
        uncut: Events = []

        async def follow_to_the_end() -> None:
            uncut.extend(await follow(owner, path))

        seen: Events = []
        cuts = 0
        async with anyio.create_task_group() as group:
            group.start_soon(follow_to_the_end)
            hold.release()
            while not seen or data_of(seen[-1])["type"] != "ended":
                few = cuts % 3 + 1
                after = id_of(seen[-1]) if seen else ""
                # The last whole event is sometimes lost with the line, as if it had not been dealt with.
                fresh = entries(await follow(owner, path, after, lambda e, few=few: len(entries(e)) > few))
                seen += fresh[:few] if cuts % 2 else fresh
                cuts += 1
        late = await follow(owner, path)
    assert cuts > 20
    assert seen == entries(uncut)
    assert entries(late) == entries(uncut)
    assert [int(id_of(one)) for one in seen] == list(range(1, len(seen) + 1))
    assert data_of(uncut[-1]) == {"type": "idle", "seq": len(seen)}


async def test_entries_in_a_stream_are_those_of_the_journal_and_deltas_have_no_id(tmp_path: Path) -> None:
    hold = stalls()
    async with serving_home(tmp_path, ScriptedModel(hold, says("one two three"))) as (_, url), client(url) as owner:
        path = await began(owner)
        with anyio.fail_after(60):
            await hold.reached.wait()

        def let_go(events: Events) -> bool:
            if len(entries(events)) == 2:
                hold.release()
            return False

        events = await follow(owner, path, is_enough=let_go)
        journal = (await owner.get(f"{path}/entries")).json()["entries"]
    assert [data_of(one) for one in entries(events)] == journal
    others = [data_of(one) for one in events if one.startswith(b"data: ")]
    assert "".join(one["text"] for one in others if one["type"] == "delta" and one["kind"] == "text") == "one two three"
    assert events[0] == b": hello"


async def test_a_cursor_in_the_header_overrides_the_one_in_the_query(tmp_path: Path) -> None:
    async with serving_home(tmp_path, ScriptedModel(says("hi"))) as (_, url), client(url) as owner:
        path = await began(owner)
        await follow(owner, path)
        by_query = await owner.get(f"{path}/events", params={"until": "idle", "after": 2})
        by_both = await owner.get(
            f"{path}/events", params={"until": "idle", "after": 1}, headers={"Last-Event-ID": "3"}
        )
        bad = await owner.get(f"{path}/events", headers={"Last-Event-ID": "three"})
        beyond = await owner.get(f"{path}/events", headers={"Last-Event-ID": "5"})
    assert [id_of(one) for one in entries(by_query.content.split(b"\n\n"))] == ["3", "4"]
    assert [id_of(one) for one in entries(by_both.content.split(b"\n\n"))] == ["4"]
    assert [answer.json()["error"]["code"] for answer in (bad, beyond)] == ["invalid_cursor"] * 2


async def test_a_stream_continues_over_several_turns_until_its_session_is_deleted(tmp_path: Path) -> None:
    async with serving_home(tmp_path, ScriptedModel(says("a"), says("b"))) as (_, url), client(url) as owner:
        path = await began(owner)
        received: list[dict[str, Any]] = []
        with anyio.fail_after(60):
            async with owner.stream("GET", f"{path}/events") as answer:
                async for line in answer.aiter_lines():
                    if not line.startswith("data: "):
                        continue
                    received.append(json.loads(line.removeprefix("data: ")))
                    if received[-1]["type"] == "ended" and received[-1]["seq"] == 4:
                        await owner.post(f"{path}/inputs", json={"text": "more"})
                    elif received[-1]["type"] == "ended":
                        await owner.delete(path)
    kinds = [one["type"] for one in received if one["type"] != "delta"]
    assert kinds == ["input", "started", "reply", "ended"] * 2 + ["error"]
    assert received[-1]["message"].endswith("was deleted")


class Chatty:
    """A model that, once released, writes a very long reply."""

    traits = ModelTraits(name="chatty", wire="scripted")

    def __init__(self, pieces: int, size: int) -> None:
        self._pieces, self._size = pieces, size
        self.may_speak = anyio.Event()
        self.most = 0
        """The peak memory of writing it, in bytes."""

    async def reply(self, prompt: Prompt, emit: Emit) -> Reply:
        await self.may_speak.wait()
        gc.collect()
        tracemalloc.start()
        try:
            for number in range(self._pieces):
                emit(Delta(f"{number:08}" * (self._size // 8), "reasoning"))
                if number % 50 == 0:
                    await anyio.lowlevel.checkpoint()
            self.most = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        return Reply("that was all", prompt.saw, model="chatty")


class Dawdler:
    """A client that follows a session to its current end, then reads nothing for a while."""

    def __init__(self, url: str, path: str) -> None:
        host, _, port = url.removeprefix("http://").partition(":")
        self._line = socket.socket()
        self._line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        self._line.settimeout(30)
        self._line.connect((host, int(port)))
        lines = [
            f"GET {path} HTTP/1.1",
            f"Host: {host}",
            f"Authorization: Bearer {key_of()}",
            "Connection: close",
            "",
            "",
        ]
        self._line.sendall("\r\n".join(lines).encode())
        self._received = b""

    def read_to(self, mark: bytes) -> None:
        while mark not in self._received:
            self._received += self._line.recv(1)

    def read_all(self) -> Events:
        with self._line:
            while piece := self._line.recv(65_536):
                self._received += piece
        body = self._received.partition(b"\r\n\r\n")[2]
        return re.sub(rb"(?:^|\r\n)[0-9a-f]+\r\n", b"", body).split(b"\n\n")


@pytest.mark.promise("L7")
async def test_clients_that_do_not_read_cost_no_memory_and_do_not_delay_the_turn(tmp_path: Path) -> None:
    pieces, size = 20_000, 1_024
    model = Chatty(pieces, size)
    async with serving_home(tmp_path, model) as (agent, url), client(url) as owner:
        path = await began(owner)
        readers = [Dawdler(url, f"{path}/events?until=idle") for _ in range(5)]
        for reader in readers:
            await anyio.to_thread.run_sync(reader.read_to, b"id: 2\n")
        model.may_speak.set()
        with anyio.fail_after(60):
            done = await agent.wait(await agent.find(path.rpartition("/")[2]))
        prompt = await follow(owner, path)
        late = [await anyio.to_thread.run_sync(reader.read_all) for reader in readers]
    assert done is not None
    assert (done.outcome, done.text) == ("done", "that was all")
    assert model.most < pieces * size / 4, f"{model.most:,} bytes were held"
    assert [entries(events) for events in late] == [entries(prompt)] * len(readers)
