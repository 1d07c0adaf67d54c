"""A Codex turn that takes too long says what it waited for."""

import socket
from pathlib import Path

import anyio
import pytest

from outrider.testing.scripted_model import says
from outrider.testing.scripted_server.script import ErrorStatus, Stall, script
from outrider.testing.scripted_server.server import open_scripted_server
from tests.support.codex import codex_home, open_codex

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]
_RETRIES = 20


@pytest.mark.behaviour("A10")
@pytest.mark.behaviour("A13")
@pytest.mark.parametrize(("codex_seconds", "limits_seconds"), [("3", "3600"), ("3600", "3")])
async def test_a_rejected_login_is_named_when_the_time_is_up_before_codex_gives_up(
    tmp_path: Path, codex_seconds: str, limits_seconds: str
) -> None:
    lines = script([*[ErrorStatus(401, "bad key")] * _RETRIES, says("never")])
    async with open_scripted_server(lines) as server:
        codex_home(tmp_path, server.url, retries=_RETRIES)
        limits = {"codex_seconds": codex_seconds, "limits_seconds": limits_seconds}
        async with open_codex(tmp_path, server.url, None, None, **limits) as agent:
            with anyio.fail_after(60):
                done = await agent.say("hi", session="s")
    assert done.outcome == "failed"
    assert ("(codex.seconds)" in done.error, "(limits.seconds)" in done.error) == (
        codex_seconds == "3",
        limits_seconds == "3",
    )
    assert "401 Unauthorized: bad key" in done.error
    assert "run `codex login`" in done.error


@pytest.mark.behaviour("A10")
async def test_a_model_that_is_out_of_reach_is_named_when_the_time_is_up(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/v1"
    config = codex_home(tmp_path, url) / "config.toml"
    config.write_text(config.read_text().replace("unbounded_connection_retries = false", ""))
    async with open_codex(tmp_path, url, codex_seconds="3") as agent:
        with anyio.fail_after(60):
            done = await agent.say("hi", session="s")
    assert done.outcome == "failed"
    assert "(codex.seconds). The last error of Codex: Reconnecting" in done.error
    assert "codex login" not in done.error


@pytest.mark.behaviour("A10")
async def test_a_request_without_an_answer_is_named_when_the_time_is_up(tmp_path: Path) -> None:
    lines = script([Stall("headers"), says("never")])
    async with open_scripted_server(lines) as server, open_codex(tmp_path, server.url, codex_seconds="7") as agent:
        with anyio.fail_after(60):
            done = await agent.say("hi", session="s")
    assert done.outcome == "failed"
    assert "(codex.seconds). Codex had waited for a reply of its model for " in done.error
