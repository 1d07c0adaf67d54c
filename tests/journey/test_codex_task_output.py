"""The output of tasks in a Codex turn: its file is hidden from Codex, so Codex is told of the tool that reads it."""

from pathlib import Path

import anyio
import pytest

from outrider.core.events import Result
from outrider.testing.scripted_model import ScriptedCall, ScriptedModel, call, says
from outrider.testing.scripted_server.script import script
from outrider.testing.scripted_server.server import open_scripted_server
from tests.support.codex import open_codex, texts

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120), pytest.mark.needs("bubblewrap")]


@pytest.mark.parametrize("tools", ["dynamic", "mcp"])
async def test_codex_learns_how_to_read_the_output_of_its_task(tmp_path: Path, tools: str) -> None:
    namespace = "mcp__outrider" if tools == "mcp" else ""
    wait = ScriptedCall("background", {"command": "while [ ! -e go ]; do sleep 0.05; done; echo it is built"})
    starts = ScriptedCall(wait.tool, wait.args, namespace=namespace)
    lines = script(says("", starts), says("started"), says("noted"))
    async with (
        open_scripted_server(lines) as server,
        open_codex(tmp_path, server.url, codex_tools=tools) as agent,
    ):
        with anyio.fail_after(90):
            await agent.say("go", session="s", address="terminal:t")
            (task,) = await agent.tasks(open_only=True)
            (tmp_path / "work" / "go").touch()
            await agent.wait_task(task)
            await server.wait_async(3)
            await agent.resume_all()
            journal = await agent.journal(await agent.find("s"))
    result, notice = texts(server.requests[1]), texts(server.requests[2])
    read = f"tasks(action=read, task={task.id})"
    assert (result.count(read), notice.count(read)) == (1, 2)
    assert f"output file: {read}" in notice
    assert not [text for text in (result, notice) if str(tmp_path / "home" / "tasks") in text]
    # The journal has the file: other runtimes can read it.
    (recorded,) = [entry.body for entry in journal if isinstance(entry.body, Result)]
    assert str(tmp_path / "home" / "tasks" / task.id / "output") in recorded.text


async def test_so_it_does_for_tasks_of_another_runtime(tmp_path: Path) -> None:
    native = ScriptedModel(says("", call("shell", command="seq 3000")), says("counted"))
    async with (
        open_scripted_server(script("I know")) as server,
        open_codex(tmp_path, server.url, native, runtime_name="native") as agent,
    ):
        with anyio.fail_after(90):
            await agent.say("count", session="s")
            (task,) = await agent.tasks()
            await agent.change(await agent.find("s"), {"runtime": "codex"})
            await agent.say("how far?", session="s")
    history = texts(server.requests[0])
    assert f"characters left out; the whole output: tasks(action=read, task={task.id}) …]" in history
    assert str(tmp_path / "home" / "tasks") not in history
