"""The scripted app-server says what the real one says, in the same order; otherwise it would prove nothing."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import anyio
import pytest

from bench.codex_bare import BareCodex, codex, provider
from outrider.testing.scripted_model import call, says
from outrider.testing.scripted_server.script import script
from outrider.testing.scripted_server.server import ScriptedServer
from tests.support.codex import codex_binary
from tests.support.scripted_codex import ScriptedCodex

pytestmark = pytest.mark.anyio
OURS = {"type": "function", "name": "ours", "description": "a tool of ours", "inputSchema": {"type": "object"}}
ANSWERS: dict[str, Any] = {
    "item/commandExecution/requestApproval": {"decision": "accept"},
    "item/tool/call": {"contentItems": [{"type": "inputText", "text": "given"}], "success": True},
}
COMPARED = (
    "turn/",
    "item/started",
    "item/completed",
    "item/agentMessage/",
    "item/tool/",
    "thread/status/",
    "thread/token",
)


async def turn(client: BareCodex, thread: str, text: str) -> list[str]:
    """What is said from the beginning of a turn to its end."""
    content = [{"type": "text", "text": text}]
    await client.ask("turn/start", threadId=thread, input=content, clientUserMessageId=text)
    methods: list[str] = []
    while not methods or not methods[-1].startswith("turn/completed"):
        message = await client.read()
        params = message.get("params", {})
        more = params["item"]["type"] if "item" in params else params["turn"]["status"] if "turn" in params else ""
        if message["method"].startswith(COMPARED) or "id" in message:
            methods.append(f"{message['method']} {more}".strip())
        if "id" in message:
            await client.send({"id": message["id"], "result": ANSWERS[message["method"]]})
    return [name for name, _ in groupby(methods[methods.index("turn/started inProgress") :])]


async def recorded_turns(client: BareCodex, thread: str) -> list[tuple[str, list[tuple[str, str | None]]]]:
    """The turns of a thread as another process finds them."""
    await client.ask("thread/resume", threadId=thread, excludeTurns=True)
    response = await client.ask("thread/turns/list", threadId=thread, itemsView="full", sortDirection="asc")
    return [(t["status"], [(item["type"], item.get("clientId")) for item in t["items"]]) for t in response["data"]]


async def whole(binary: str, home: Path, settings: Sequence[str], work: Path) -> list[object]:
    """Two turns, and what is left of them for the next process."""
    with anyio.fail_after(60):
        async with codex(binary, home, settings) as client:
            how = {"approvalPolicy": "untrusted", "sandbox": "danger-full-access", "dynamicTools": [OURS]}
            thread = await client.start_thread(work, **how)
            methods: list[object] = [await turn(client, thread, "one"), await turn(client, thread, "two")]
        async with codex(binary, home, settings) as client:
            methods.append(await recorded_turns(client, thread))
            methods.append(await turn(client, thread, "three"))
    return methods


async def test_the_scripted_app_server_sends_the_messages_of_the_real_one(tmp_path: Path) -> None:
    scripted = ScriptedCodex(tmp_path)
    scripted.will(
        [
            {"say": "first"},
            {"run": "echo x > made", "asks": True, "cwd": str(scripted.work)},
            {"tool": "ours"},
            {"say": "done"},
        ],
        [{"say": "again"}],
    )
    lines = script(
        says("first", call("exec_command", cmd="echo x > made")),
        says("", call("ours")),
        says("done"),
        says("again"),
        says("ok"),
    )
    home = tmp_path / "codex"
    home.mkdir()
    with ScriptedServer(lines) as server:
        real = await whole(codex_binary(), home, provider(server.url), scripted.work)
    assert await whole(scripted.command, scripted.folder, (), scripted.work) == real
