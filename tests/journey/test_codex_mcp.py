"""Our tools in turns of the real Codex, over MCP: called, run as ours, written down once, and never done twice."""

from pathlib import Path

import anyio
import pytest

from outrider.core.events import Result
from outrider.models.script_server import script, serving
from outrider.models.scripted import Wanted, says
from tests.support.codex import opened, shown, texts

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]


def ours(tool: str, **args: object) -> Wanted:
    """A call by which Codex's model uses a tool of ours."""
    return Wanted(tool, args, namespace="mcp__outrider")


async def test_our_tools_run_as_ours_over_mcp_and_the_end_of_a_background_task_is_told(tmp_path: Path) -> None:
    wait = "while [ ! -e go ]; do sleep 0.05; done; echo it is built"
    lines = script(
        says("", ours("background", command=wait)), says("", ours("tasks", action="list")), says("ok"), says("heard")
    )
    async with serving(lines) as server, opened(tmp_path, server.url, codex_tools="mcp") as agent:
        with anyio.fail_after(90):
            done = await agent.say("go", session="s", address="terminal:t")
            (task,) = await agent.tasks(open_only=True)
            session = await agent.find("s")
            before = shown(await agent.journal(session))
            (tmp_path / "work" / "go").touch()
            await agent.wait_task(task)
            await server.asked(4)
            await agent.finish()
    assert done.text == "ok"
    assert task.id in texts(server.requests[2])
    assert "it is built" in texts(server.requests[3])
    assert [line for line in before if line.startswith(("reply", "begun"))] == [
        "reply shell",
        "begun",
        "reply tasks",
        "begun",
        "reply ok",
    ]
    assert len([line for line in before if line.startswith("result")]) == 2


async def test_what_our_tools_are_called_over_mcp_can_be_found_and_the_token_is_in_no_file_and_no_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = "t0k3n-of-this-very-thread"
    monkeypatch.setattr("outrider.runtimes.mcp.door.new_token", lambda: token)
    look = "env; cat /proc/$PPID/environ /proc/$PPID/cmdline; cat /proc/*/cmdline 2>/dev/null | tr '\\0' ' '"
    lines = script(says("", Wanted("exec_command", {"cmd": look})), says("", ours("tasks", action="list")), says("ok"))
    async with serving(lines) as server, opened(tmp_path, server.url, codex_tools="mcp") as agent:
        with anyio.fail_after(90):
            done = await agent.say("go", session="s")
            journal = await agent.journal(await agent.find("s"))
            files = [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
    results = [entry.body for entry in journal if isinstance(entry.body, Result)]
    assert done.text == "ok"
    assert [result.failed for result in results] == [False, False]
    assert ("PATH=" in texts(server.requests[1]), token in texts(server.requests[1])) == (True, False)
    assert [token.encode() in content for content in files].count(True) == 0
    assert "start a command that outlives this turn" in str(server.requests[0].body["tools"])
