"""The link by itself: who is let in, what crosses, and where its socket is."""

import json
import os
import socket
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio
import msgspec
import pytest

import outrider
from outrider import __version__
from outrider.app.api import AgentApi
from outrider.core.errors import HomeBusy, NameTaken, Refused, Unavailable
from outrider.ipc.client import connect_to_owner, request_hand_over
from outrider.ipc.protocol import (
    CALLS,
    FORWARDED_ERRORS,
    MAX_FRAME,
    SOCKET_NAME,
    ConnectionLost,
    IpcConnection,
    IpcRequest,
    OwnerInfo,
    parse_args,
    parse_error,
    peer_uid,
    render_args,
    render_error,
    socket_path,
)
from outrider.ipc.server import OwnerServer, serve_home
from outrider.testing.scripted_model import ScriptedModel, says

pytestmark = pytest.mark.anyio

ME = OwnerInfo("outrider chat", 12, __version__, "scripted")


@asynccontextmanager
async def served(home: Path, me: OwnerInfo = ME, refusal: str = "") -> AsyncGenerator[OwnerServer]:
    async with outrider.open(home, model=ScriptedModel(says("hello"))) as agent:
        owner = OwnerServer(agent, me, refusal=refusal)
        async with serve_home(home, owner):
            yield owner


@contextmanager
def raw(home: Path) -> Generator[IpcConnection]:
    with IpcConnection(socket.socket(socket.AF_UNIX)) as line:
        line.socket.connect(str(home / SOCKET_NAME))
        line.socket.setblocking(False)
        yield line


async def test_a_guest_is_told_who_owns_the_home_and_sees_it_go(tmp_path: Path) -> None:
    with anyio.fail_after(20):
        async with served(tmp_path / "home") as owner, connect_to_owner(tmp_path / "home") as guest:
            assert guest is not None
            assert (guest.info, owner.client_count) == (ME, 1)
            owner.successor = "outrider up"
            await owner.drain("going", 0.0)
            assert await guest.wait_closed() == "outrider up"


async def test_calls_and_their_errors_cross_as_they_are(tmp_path: Path) -> None:
    with anyio.fail_after(20):
        async with served(tmp_path / "home") as owner, connect_to_owner(tmp_path / "home", str(tmp_path)) as guest:
            assert guest is not None
            session = await guest.call("session", {"name": "s"})
            assert (session, session.workspace) == (await owner.agent.find("s"), str(tmp_path))
            with pytest.raises(Refused, match="no session is called 'none'"):
                await guest.call("find", {"name": "none"})
            await guest.call("session", {"name": "taken"})
            with pytest.raises(NameTaken, match="another session is called 'taken'"):
                await guest.call("rename", {"session": session, "name": "taken"})


async def test_another_version_is_told_to_be_started_again(tmp_path: Path) -> None:
    with anyio.fail_after(20):
        async with served(tmp_path / "home", OwnerInfo("outrider up", 12, "0.0.1", "")):
            told = rf"outrider up \(process 12\) is Outrider 0.0.1 and this is Outrider {__version__}; end it and start"
            with pytest.raises(HomeBusy, match=told):
                async with connect_to_owner(tmp_path / "home"):
                    pass


async def test_an_owner_that_stays_refuses_to_make_way(tmp_path: Path) -> None:
    with anyio.fail_after(20):
        assert not await request_hand_over(tmp_path, "outrider up")
        async with served(tmp_path / "home", refusal="outrider up stays"):
            with pytest.raises(HomeBusy, match="outrider up stays"):
                await request_hand_over(tmp_path / "home", "outrider up")
        async with served(tmp_path / "home") as owner:
            assert await request_hand_over(tmp_path / "home", "outrider up")
            assert (owner.successor, owner.hand_over_requested.is_set()) == ("outrider up", True)


@pytest.mark.promise("S1")
async def test_another_user_is_let_in_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with anyio.fail_after(20):
        async with served(tmp_path / "home") as owner:
            monkeypatch.setattr(os, "getuid", lambda: 4321)
            with raw(tmp_path / "home") as line:
                await line.send(IpcRequest(__version__, "sessions"))
                assert await line.receive_response() == render_error(Refused("this home belongs to another user"))
            assert owner.client_count == 0


@pytest.mark.parametrize(
    "request_",
    [
        IpcRequest(__version__, "home"),
        IpcRequest(__version__, "__init__"),
        IpcRequest(__version__, "find", render_args({"surname": "s"})),
        IpcRequest(__version__, "find", render_args({"name": 5})),
        IpcRequest(__version__, "sessions", image_count=21),
    ],
)
async def test_what_is_no_call_is_refused(tmp_path: Path, request_: IpcRequest) -> None:
    with anyio.fail_after(20):
        async with served(tmp_path / "home"):
            with raw(tmp_path / "home") as line:
                await line.send(request_)
                answer = json.loads(await line.receive())
                assert (answer["type"], answer["error"]) == ("failed", "Refused"), answer
            async with connect_to_owner(tmp_path / "home") as guest:  # and the owner is as well as before
                assert guest is not None


@pytest.mark.promise("L7")
async def test_a_frame_that_is_too_long_is_not_read(tmp_path: Path) -> None:
    with anyio.fail_after(20):
        async with served(tmp_path / "home"):
            with raw(tmp_path / "home") as line:
                line.socket.send((MAX_FRAME + 1).to_bytes(4, "big") + b"x")
                with pytest.raises(ConnectionLost):
                    await line.receive()


def test_every_call_has_a_shape_that_crosses() -> None:
    for call in CALLS:
        assert callable(getattr(AgentApi, call))
        parse_args(call, {})


@pytest.mark.parametrize("kind", FORWARDED_ERRORS)
def test_every_error_crosses_as_itself(kind: type[Exception]) -> None:
    error = Unavailable("later", 2.5) if kind is Unavailable else kind("words")
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
    here, there = socket.socketpair(socket.AF_UNIX)
    with here, there:
        assert peer_uid(here) in (os.getuid(), None)
