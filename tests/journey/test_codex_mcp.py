"""Our tools in turns of the real Codex, over MCP: called, run as ours, written down once, and never done twice."""

import shlex
from pathlib import Path

import anyio
import pytest

from outrider.app.agent import Agent
from outrider.core.events import Asked, Entry, Result
from outrider.testing.scripted_model import ScriptedCall, says
from outrider.testing.scripted_server.script import Script, ScriptRule, Stall, script
from outrider.testing.scripted_server.server import open_scripted_server
from tests.support.codex import codex_binary, open_codex, summarize, texts
from tests.support.questions import DENIED
from tests.support.scripted_codex import ScriptedCodex, at
from tests.support.tuned_codex import tune_codex

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]


def ours(tool: str, **args: object) -> ScriptedCall:
    """A call by which Codex's model uses a tool of ours."""
    return ScriptedCall(tool, args, namespace="mcp__outrider")


@pytest.mark.needs("bubblewrap")
async def test_our_tools_run_over_mcp_and_the_end_of_a_background_task_is_notified(tmp_path: Path) -> None:
    wait = "while [ ! -e go ]; do sleep 0.05; done; echo it is built"
    lines = script(
        says("", ours("background", command=wait)), says("", ours("tasks", action="list")), says("ok"), says("noted")
    )
    async with (
        open_scripted_server(lines) as server,
        open_codex(tmp_path, server.url, codex_tools="mcp") as agent,
    ):
        with anyio.fail_after(90):
            done = await agent.say("go", session="s", address="terminal:t")
            (task,) = await agent.tasks(open_only=True)
            session = await agent.find("s")
            before = summarize(await agent.journal(session))
            (tmp_path / "work" / "go").touch()
            await agent.wait_task(task)
            await server.wait_async(4)
            await agent.resume_all()
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


@pytest.mark.needs("bubblewrap")
async def test_the_model_finds_our_tools_over_mcp_and_the_token_is_in_no_file_or_command(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = "t0k3n-of-this-very-thread"
    tune_codex(monkeypatch, tmp_path_factory.mktemp("plugin"), token=token)
    look = "env; cat /proc/$PPID/environ /proc/$PPID/cmdline; cat /proc/*/cmdline 2>/dev/null | tr '\\0' ' '"
    lines = script(
        says("", ScriptedCall("exec_command", {"cmd": look})), says("", ours("tasks", action="list")), says("ok")
    )
    async with (
        open_scripted_server(lines) as server,
        open_codex(tmp_path, server.url, codex_tools="mcp") as agent,
    ):
        with anyio.fail_after(90):
            done = await agent.say("go", session="s")
            journal = await agent.journal(await agent.find("s"))
            files = [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
    results = [entry.body for entry in journal if isinstance(entry.body, Result)]
    assert done.text == "ok"
    assert [result.failed for result in results] == [False, False], results
    assert ("PATH=" in texts(server.requests[1]), token in texts(server.requests[1])) == (True, False)
    assert [token.encode() in content for content in files].count(True) == 0
    assert "start a command that outlives this turn" in str(server.requests[0].body["tools"])


@pytest.mark.needs("bubblewrap")
async def test_a_call_over_mcp_is_recorded_after_what_codex_reported_before_it(tmp_path: Path) -> None:
    # Its notifications arrive late; MCP has a connection of its own.
    slow = tmp_path / "slow-codex"
    relay = "while IFS= read -r line; do sleep 0.1; printf '%s\\n' \"$line\"; done"
    slow.write_text(f'#!/bin/sh\n"{codex_binary()}" "$@" | {relay}\n')
    slow.chmod(0o700)
    lines = script(
        says("", ScriptedCall("exec_command", {"cmd": "echo hi"})), says("", ours("tasks", action="list")), says("ok")
    )
    async with (
        open_scripted_server(lines) as server,
        open_codex(tmp_path, server.url, codex_tools="mcp", codex_command=str(slow)) as agent,
    ):
        with anyio.fail_after(90):
            await agent.say("go", session="s")
            journal = summarize(await agent.journal(await agent.find("s")))
    assert journal[-8:] == [
        "reply shell",
        "begun",
        "result hi\n",
        "reply tasks",
        "begun",
        'result {"tasks":[],"count":0}',
        "reply ok",
        "ended done",
    ]


async def test_a_codex_without_dynamic_tools_gets_them_over_mcp_also_when_it_is_resumed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain = tmp_path / "plain-codex"
    less = 's/"experimentalApi":true/"experimentalApi":false/'
    plain.write_text(f'#!/bin/sh\nsed -u {shlex.quote(less)} | {shlex.quote(codex_binary())} "$@"\n')
    plain.chmod(0o755)
    lines = script(
        says("", ours("tasks", action="list")), says("one"), says("", ours("tasks", action="list")), says("two")
    )
    async with open_scripted_server(lines) as server:
        with anyio.fail_after(90):
            async with open_codex(tmp_path, server.url, codex_command=str(plain)) as agent:
                first = await agent.say("go", session="s")
            async with open_codex(tmp_path, server.url, codex_command=str(plain)) as agent:
                second = await agent.say("again", session="s")
                journal = await agent.journal(await agent.find("s"))
    assert (first.text, second.text, first.thread) == ("one", "two", second.thread)
    assert [entry.body.failed for entry in journal if isinstance(entry.body, Result)] == [False, False]
    assert any("it gets Outrider's tools over MCP" in record.message for record in caplog.records)


@pytest.mark.parametrize("approval", ["on-request", "untrusted", "never"])
async def test_a_call_of_our_tool_that_needs_an_approval_is_asked_about_once(tmp_path: Path, approval: str) -> None:
    lines = script(says("", ours("background", command="echo x >> ran", needs=["network"])), says("ok"))
    async with (
        open_scripted_server(lines) as server,
        open_codex(tmp_path, server.url, codex_tools="mcp", codex_approval=approval) as agent,
    ):
        with anyio.fail_after(90):
            session = await agent.session("s")
            await agent.post("go", session=session, address="terminal:t")
            async for event in agent.follow(session):
                if isinstance(event, Entry) and isinstance(event.body, Asked):
                    await agent.answer(session, event.body, "no")
                    break
            await agent.wait(await agent.find("s"))
            journal = summarize(await agent.journal(session))
    assert journal.count("asked") == 1
    assert [line for line in journal if line.startswith("result")] == [f"result {DENIED}"]
    assert DENIED in texts(server.requests[1])
    assert not (tmp_path / "work" / "ran").exists()


async def test_a_stop_ends_a_call_of_our_tool_over_mcp_and_the_next_turn_has_them_again(tmp_path: Path) -> None:
    child = ScriptRule("say hello", ((Stall("headers"), says("hello")),))
    asks = (says("", ours("delegate", work="say hello", description="a child", background=False)),)
    lines = Script((asks, (says("", ours("tasks", action="list")),), (says("ok"),)), (child,))
    async with (
        open_scripted_server(lines) as server,
        open_codex(tmp_path, server.url, codex_tools="mcp") as agent,
    ):
        with anyio.fail_after(90):
            session = await agent.session("s")
            await agent.post("go", session=session, address="terminal:t")
            await server.wait_async(2)
            assert await agent.stop(session)
            await agent.wait(await agent.find("s"))
            done = await agent.say("again", session="s")
            journal = summarize(await agent.journal(session))
    assert (done.outcome, done.text) == ("done", "ok")
    assert journal.count("reply delegate") == 1
    assert [line for line in journal if line.startswith("ended")] == [
        "ended interrupted stopped",
        "ended done",
    ], "\n".join(journal)


async def test_a_call_that_did_not_reach_us_is_in_the_journal_as_failed(tmp_path: Path) -> None:
    item = {
        "type": "mcpToolCall",
        "id": "call_1",
        "server": "outrider",
        "tool": "tasks",
        "arguments": {"action": "list"},
    }
    failed = {**item, "status": "failed", "error": {"message": "connection refused"}, "result": None}
    codex = ScriptedCodex(tmp_path)
    codex.will(
        [
            {
                "send": {
                    "method": "item/started",
                    "params": {"item": {**item, "status": "inProgress"}, "startedAtMs": 1},
                }
            },
            {"send": {"method": "item/completed", "params": {"item": failed, "completedAtMs": 1}}},
            {"say": "so be it"},
        ]
    )
    with anyio.fail_after(60):
        async with codex.open_agent(codex_tools="mcp") as agent:
            await agent.say("go", session="s")
            journal = summarize(await agent.journal(await agent.find("s")))
    assert [line for line in journal if line.startswith(("reply", "result", "begun"))] == [
        "reply tasks",
        "begun",
        "result connection refused",
        "reply so be it",
    ]


@pytest.mark.parametrize(("tools", "answer"), [("mcp", "accept"), ("dynamic", "decline")])
async def test_elicitations_of_our_own_server_are_accepted_and_those_of_another_with_its_name_are_not(
    tmp_path: Path, tools: str, answer: str
) -> None:
    question: dict[str, object] = {"serverName": "outrider", "message": "Allow it?", "mode": "form"}
    asked = {"method": "mcpServer/elicitation/request", "id": 77, "params": question}
    codex = ScriptedCodex(tmp_path)
    codex.will([{"send": asked}, {"meet": "asked"}, {"say": "ok"}], faults=at("asked", "wait answered"))
    actions: list[object] = []
    with anyio.fail_after(60):
        async with codex.open_agent(codex_tools=tools) as agent, anyio.create_task_group() as group:
            group.start_soon(_say, agent)
            while not actions:
                await anyio.sleep(0.02)
                actions = [
                    message["result"]["action"] for message in codex.messages("received") if message.get("id") == 77
                ]
            codex.release("answered")
    assert actions == [answer]


async def _say(agent: Agent) -> None:
    await agent.say("go", session="s", address="pipe:t")
