"""The protocol between processes of one home: who is accepted, what is sent, and where the socket is."""

import inspect
import json
import os
import socket
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from math import inf
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from msgspec import Raw

import outrider
from outrider import __version__
from outrider.app.agent import Agent
from outrider.app.api import AgentApi, OpenMode
from outrider.app.open import open_agent
from outrider.app.operations import OPERATIONS
from outrider.config.load import load
from outrider.core.errors import HomeBusy, NameTaken, Refused, Unavailable
from outrider.core.events import Asked
from outrider.core.store_port import KeySpec, Session
from outrider.core.tasks import Task, TaskSpec
from outrider.ipc.client import connect_to_owner, request_hand_over
from outrider.ipc.protocol import (
    FORWARDED_ERRORS,
    MAX_FRAME,
    SOCKET_NAME,
    ConnectionLost,
    IpcConnection,
    IpcRequest,
    OwnerInfo,
    parse_error,
    peer_uid,
    render_error,
    socket_path,
)
from outrider.ipc.server import OwnerServer, serve_home
from outrider.ipc.takeover import open_home_client
from outrider.system.lock import lock_home
from outrider.testing.scripted_model import ScriptedModel, says

pytestmark = pytest.mark.anyio

INFO = OwnerInfo("outrider chat", 12, __version__, "scripted")
READ_ONLY = OwnerInfo("Python", 12, __version__, "scripted", serves="read")
SESSION = Session("id", "ann", "s", "/work", "", 1, 2, 3, False, True)
TASK = Task(
    id="t-1",
    session="id",
    person="ann",
    workspace="/work",
    spec=TaskSpec(kind="command", call="c-1", command="true"),
    state="running",
    created=1,
)
SAMPLES: dict[str, Any] = {
    "text": "hi",
    "session": SESSION,
    "images": [b"\x89PNG", b"\xff"],
    "key": "k",
    "address": "pipe:x",
    "reason": "enough",
    "tasks": True,
    "asked": Asked("ask-c-1", "May it?", "c-1", ("once", "no"), ("network",)),
    "answer": "once",
    "name": "s",
    "limit": 7,
    "after": 3,
    "words": "two words",
    "settings": {"model": "m"},
    "permission_id": "p",
    "open_only": True,
    "task": TASK,
    "seconds": 1.5,
    "id": "aaaaaaaa",
    "since": 5,
    "spec": KeySpec("laptop", "ann", ("admin",)),
    "digest": b"\x00\xff",
}
"""A value for every parameter of every operation, none of them its default."""


@asynccontextmanager
async def owner_of(home: Path, info: OwnerInfo = INFO, refusal: str = "") -> AsyncGenerator[OwnerServer]:
    """An owner that serves this home."""
    config, mode = load(home, {}), OpenMode("outrider chat")
    async with (
        lock_home(home, mode.label, 0.0, serves=info.serves) as lock,
        open_agent(config, lock, mode, model=ScriptedModel(says("hello"))) as agent,
    ):
        server = OwnerServer(agent, info, refusal=refusal)
        async with serve_home(home, server):
            yield server


@contextmanager
def raw_connection(home: Path) -> Generator[IpcConnection]:
    with IpcConnection(socket.socket(socket.AF_UNIX)) as connection:
        connection.socket.connect(str(home / SOCKET_NAME))
        connection.socket.setblocking(False)
        yield connection


async def test_a_client_learns_who_owns_the_home_and_sees_it_leave(tmp_path: Path) -> None:
    with anyio.fail_after(60):
        async with owner_of(tmp_path / "home") as owner, connect_to_owner(tmp_path / "home") as client:
            assert client is not None
            assert (client.info, owner.client_count) == (INFO, 1)
            assert await request_hand_over(tmp_path / "home", "outrider up")
            await owner.drain("leaving", 0.0)
            assert await client.wait_closed() == "outrider up"


async def test_results_and_errors_of_operations_cross_as_they_are(tmp_path: Path) -> None:
    with anyio.fail_after(60):
        async with owner_of(tmp_path / "home") as owner, connect_to_owner(tmp_path / "home", str(tmp_path)) as client:
            assert client is not None
            session = await client.call(OPERATIONS["session"], ("s",), {})
            assert (session, session.workspace) == (await owner.agent.find("s"), str(tmp_path))
            with pytest.raises(Refused, match="there is no session 'none'"):
                await client.call(OPERATIONS["find"], (), {"name": "none"})
            await client.call(OPERATIONS["session"], ("taken",), {})
            with pytest.raises(NameTaken, match="another session is named 'taken'"):
                await client.call(OPERATIONS["rename"], (session, "taken"), {})


async def test_a_client_of_another_version_is_refused(tmp_path: Path) -> None:
    with anyio.fail_after(60):
        async with owner_of(tmp_path / "home", OwnerInfo("outrider up", 12, "0.0.1", "")):
            expected = rf"outrider up \(process 12\) is Outrider 0.0.1 and this is Outrider {__version__}; restart it"
            with pytest.raises(HomeBusy, match=expected):
                async with connect_to_owner(tmp_path / "home"):
                    pass


async def test_an_owner_may_refuse_to_hand_over(tmp_path: Path) -> None:
    with anyio.fail_after(60):
        assert not await request_hand_over(tmp_path, "outrider up")
        async with owner_of(tmp_path / "home", refusal="stop it first"):
            with pytest.raises(HomeBusy, match="stop it first"):
                await request_hand_over(tmp_path / "home", "outrider up")
        async with owner_of(tmp_path / "home") as owner:
            assert await request_hand_over(tmp_path / "home", "outrider up")
            assert (owner.successor, owner.hand_over_requested.is_set()) == ("outrider up", True)


async def test_an_owner_that_serves_read_access_refuses_what_changes_something(tmp_path: Path) -> None:
    with anyio.fail_after(60):
        async with owner_of(tmp_path / "home", READ_ONLY) as owner, connect_to_owner(tmp_path / "home") as client:
            assert client is not None
            session = await owner.agent.session("s")
            assert await client.call(OPERATIONS["find"], ("s",), {}) == session
            with pytest.raises(HomeBusy, match=r"Python \(process 12\) is using this home and runs no turns for"):
                await client.call(OPERATIONS["delete"], (session,), {})
            with pytest.raises(HomeBusy, match="is using this home"):
                await anext(client.follow(session, 0))
            with pytest.raises(HomeBusy, match="is using this home"):
                await request_hand_over(tmp_path / "home", "outrider up")
            assert await owner.agent.sessions() == [session]


async def test_a_command_waits_for_a_python_program_that_is_about_to_leave(tmp_path: Path) -> None:
    config, is_open = load(tmp_path / "home", {}), anyio.Event()

    async def open_client() -> None:
        async with open_home_client(config, OpenMode("outrider run", wait=20.0)) as client:
            assert not client.is_client
            is_open.set()

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            async with outrider.open(config=config, model=ScriptedModel()):
                group.start_soon(open_client)
                await anyio.wait_all_tasks_blocked()
                assert not is_open.is_set()
            await is_open.wait()


@pytest.mark.promise("S1")
async def test_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with anyio.fail_after(60):
        async with owner_of(tmp_path / "home") as owner:
            monkeypatch.setattr(os, "getuid", lambda: 4321)
            with raw_connection(tmp_path / "home") as connection:
                await connection.send(IpcRequest(__version__, "sessions"))
                assert await connection.receive_response() == render_error(Refused("this home belongs to another user"))
            assert owner.client_count == 0


@pytest.mark.parametrize(
    "request_",
    [
        IpcRequest(__version__, "home"),
        IpcRequest(__version__, "__init__"),
        IpcRequest(__version__, "find", Raw(b'{"surname": "s"}')),
        IpcRequest(__version__, "find", Raw(b'{"name": 5}')),
        IpcRequest(__version__, "sessions", image_count=21),
    ],
)
async def test_an_invalid_request_is_refused(tmp_path: Path, request_: IpcRequest) -> None:
    with anyio.fail_after(60):
        async with owner_of(tmp_path / "home"):
            with raw_connection(tmp_path / "home") as connection:
                await connection.send(request_)
                response = json.loads(await connection.receive())
                assert (response["type"], response["error"]) == ("failed", "Refused"), response
            async with connect_to_owner(tmp_path / "home") as client:  # the owner still answers
                assert client is not None


@pytest.mark.promise("L7")
async def test_a_frame_that_is_too_long_is_not_read(tmp_path: Path) -> None:
    with anyio.fail_after(60):
        async with owner_of(tmp_path / "home"):
            with raw_connection(tmp_path / "home") as connection:
                connection.socket.send((MAX_FRAME + 1).to_bytes(4, "big") + b"x")
                with pytest.raises(ConnectionLost):
                    await connection.receive()


def test_an_agent_does_every_operation_itself() -> None:
    assert [name for name in OPERATIONS if name not in vars(Agent)] == []


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_arguments_of_every_operation_cross_as_they_are(name: str) -> None:
    operation = OPERATIONS[name]
    parameters = [
        parameter for parameter in inspect.signature(getattr(AgentApi, name)).parameters if parameter != "self"
    ]
    kwargs = {parameter: SAMPLES[parameter] for parameter in parameters}
    content, images = operation.encode_args((), kwargs)
    assert operation.decode_args(content, images) == kwargs


def test_arguments_that_are_left_out_have_their_defaults() -> None:
    assert OPERATIONS["wait_task"].encode_args((TASK, inf), {}) == OPERATIONS["wait_task"].encode_args((TASK,), {})
    content, _ = OPERATIONS["wait_task"].encode_args((TASK,), {})
    assert OPERATIONS["wait_task"].decode_args(content) == {"task": TASK, "seconds": inf}


@pytest.mark.parametrize("kind", FORWARDED_ERRORS)
def test_every_error_crosses_as_itself(kind: type[Exception]) -> None:
    error = Unavailable("later", 2.5) if kind is Unavailable else kind("text")
    back = parse_error(msgspec.json.decode(msgspec.json.encode(render_error(error)), type=type(render_error(error))))
    assert (type(back), str(back), getattr(back, "retry_after", None)) == (
        kind,
        str(error),
        getattr(error, "retry_after", None),
    )


def test_a_long_home_without_descriptors_in_proc_has_its_socket_in_a_private_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / ("x" * 120)
    home.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with socket_path(home, tmp_path / "none") as path:
        folder = Path(path).parent
    assert (folder.parent, folder.stat().st_mode & 0o777) == (tmp_path, 0o700)
    folder.chmod(0o755)
    with pytest.raises(Refused, match="is open to others"), socket_path(home, tmp_path / "none"):
        pass


def test_the_user_at_the_other_end_is_known() -> None:
    one, other = socket.socketpair(socket.AF_UNIX)
    with one, other:
        assert peer_uid(one) in (os.getuid(), None)
