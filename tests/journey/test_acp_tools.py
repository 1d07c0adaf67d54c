"""Our tools in turns of an ACP agent, over MCP: called, run under our rules, and recorded once."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

import outrider
from outrider.config.load import load
from outrider.core.events import Answered, Asked, Begun, Body, Ended, Input, Reply, Result
from outrider.core.types import Call
from tests.support.acp import PATIENCE, World, do, finished_journal, post, text
from tests.support.life import killed_at
from tests.support.questions import DENIED, asked
from tests.support.survivors import end_all

pytestmark = pytest.mark.anyio
LIST = {"action": "list"}
ASK_FIRST = '[[rules]]\nverdict = "ask"\ntool = "tasks"\n'
NAMES = ["mcp__outrider__tasks", "outrider_tasks", "tasks (outrider MCP Server)", "outrider - tasks (MCP)"]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    try:
        yield World(tmp_path)
    finally:
        end_all(tmp_path)


def report(id: str, status: str, title: str = NAMES[0], **more: Any) -> tuple[str, Any]:
    """The act of reporting a call of one of our tools."""
    kind = "tool_call" if status == "pending" else "tool_call_update"
    return "update", {
        "sessionUpdate": kind,
        "toolCallId": id,
        "title": title,
        "kind": "other",
        "status": status,
        **more,
    }


def calls_of(journal: list[Body]) -> list[tuple[str, Any]]:
    return [(call.tool, call.args) for body in journal if isinstance(body, Reply) for call in body.calls]


@pytest.mark.parametrize(
    ("words", "tools", "count"), [(["mcp"], "auto", 1), (["mcp"], "off", 0), ([], "auto", 0)], ids=str
)
async def test_our_server_is_offered_to_agents_that_can_use_it(
    world: World, words: list[str], tools: str, count: int
) -> None:
    for _ in range(2):
        async with world.open_agent(*words, acp_tools=tools) as agent:
            await post(agent, do(("say", "ok")))
            await finished_journal(agent)
    new, loaded = world.received("session/new") + world.received("session/load")
    assert (len(new["mcpServers"]), len(loaded["mcpServers"])) == (count, count)
    for server in new["mcpServers"] + loaded["mcpServers"]:
        assert (server["type"], server["name"], server["headers"][0]["name"]) == ("http", "outrider", "Authorization")
        assert server["url"].startswith("http://127.0.0.1:")
    tokens = [server["headers"][0]["value"] for server in new["mcpServers"] + loaded["mcpServers"]]
    assert len(set(tokens)) == 2 * count


@pytest.mark.parametrize("name", NAMES)
async def test_a_call_of_our_tool_is_recorded_once_with_our_result(world: World, name: str) -> None:
    """The agent reports it, too, before and after, and requests a permission, which it gets without a question."""
    words = do(
        ("say", "I look."),
        report("c1", "pending", name, rawInput={}),
        ("ask", {"toolCallId": "c1", "title": name, "kind": "other", "rawInput": LIST}),
        report("c1", "in_progress", name, rawInput=LIST),
        ("mcp", "tasks", LIST),
        report("c1", "completed", name, content=text("whatever")),
        ("say", "Nothing."),
    )
    async with world.open_agent("mcp", "quiet") as agent:
        await post(agent, words)
        journal = await finished_journal(agent)
    (result,) = [body for body in journal if isinstance(body, Result)]
    assert calls_of(journal) == [("tasks", LIST)]
    assert world.lines("tool-results") == [{"content": [{"type": "text", "text": result.text}], "isError": False}]
    assert not [body for body in journal if isinstance(body, Asked)]
    assert [body.text for body in journal if isinstance(body, Reply)] == ["I look.", "", "Nothing."]


async def test_a_call_that_arrives_before_its_report_is_recorded_once_after_the_text(world: World) -> None:
    """As with opencode: the report and the text before it are on another connection."""
    words = do(
        ("mcp-and", "tasks", LIST),
        ("until", "go"),
        ("say", "I look."),
        report("c1", "pending", rawInput={}),
        ("until", "tool-results"),
        report("c1", "completed", rawInput=LIST),
        ("say", "Nothing."),
    )
    async with world.open_agent("mcp") as agent:
        await post(agent, words)
        await world.has("calling")
        (world.agents / "go").touch()
        journal = await finished_journal(agent)
    assert calls_of(journal) == [("tasks", LIST)]
    assert [body.text for body in journal if isinstance(body, Reply)] == ["I look.", "", "Nothing."]


async def test_equal_calls_are_as_many_as_were_made(world: World) -> None:
    words = do(
        report("c1", "pending", rawInput=LIST),
        report("c2", "pending", rawInput=LIST),
        ("mcp", "tasks", LIST, "c2"),
        ("mcp", "tasks", LIST, "c2"),
        ("mcp", "tasks", LIST),
        report("c1", "completed"),
        report("c2", "completed"),
    )
    async with world.open_agent("mcp") as agent:
        await post(agent, words)
        journal = await finished_journal(agent)
    # The second came under the id of the first: it is the same call.
    assert calls_of(journal) == [("tasks", LIST)] * 2
    assert len(world.lines("tool-results")) == 3


async def test_a_report_of_a_call_that_never_arrived_is_recorded_as_the_agents_own(world: World) -> None:
    words = do(
        report("c1", "pending", rawInput=LIST), report("c1", "completed", content=text("made up")), ("say", "ok")
    )
    async with world.open_agent("mcp") as agent:
        await post(agent, words)
        journal = await finished_journal(agent)
    assert calls_of(journal) == [("tool", LIST)]
    assert [body.text for body in journal if isinstance(body, Result)] == ["made up"]


@pytest.mark.parametrize(
    "call",
    [
        {"title": "outrider_tasks", "kind": "execute", "rawInput": {"command": "outrider_tasks"}},
        {"title": "mcp__outrider__tasks", "kind": "other", "rawInput": {**LIST, "command": "rm x"}},
        {"title": "mcp__other__outrider_tasks", "kind": "other", "rawInput": LIST},
        {"title": "mcp__outrider__burn", "kind": "other", "rawInput": {}},
    ],
)
async def test_only_a_call_of_our_tool_is_allowed_without_a_question(world: World, call: dict[str, Any]) -> None:
    async with world.open_agent("mcp") as agent:
        session = await post(agent, do(("ask", {"toolCallId": "c1", **call}), ("say", "ok")))
        await agent.answer(session, await asked(agent, session), "no")
        await finished_journal(agent)
    assert world.effects() == [{"outcome": {"outcome": "selected", "optionId": "3"}}]


@pytest.mark.parametrize(("answer", "failed"), [("once", False), ("no", True)])
async def test_our_rules_decide_about_our_tools(world: World, answer: str, failed: bool) -> None:
    (world.home / "config.toml").write_text(ASK_FIRST)
    async with world.open_agent("mcp") as agent:
        session = await post(agent, do(report("c1", "pending"), ("mcp", "tasks", LIST), ("say", "ok")))
        await agent.answer(session, await asked(agent, session), answer)
        journal = await finished_journal(agent)
    (result,) = [body for body in journal if isinstance(body, Result)]
    assert (result.failed, result.text == DENIED) == (failed, failed)
    assert world.lines("tool-results")[0]["isError"] is failed
    assert len([body for body in journal if isinstance(body, Begun)]) == (not failed)


@pytest.mark.needs("bubblewrap")
async def test_the_end_of_a_background_task_is_notified_where_the_turn_answers(world: World) -> None:
    (world.work / "build").write_text("while [ ! -e go ]; do sleep 0.05; done; echo it is built")
    command = {"command": "sh build"}
    words = do(report("c1", "pending", "outrider_background"), ("mcp", "background", command), ("say", "started"))
    async with world.open_agent("mcp") as agent:
        await post(agent, words)
        before = await finished_journal(agent)
        (task,) = await agent.tasks(open_only=True)
        (world.work / "go").touch()
        await agent.wait_task(task)
        await agent.resume_all()
        with anyio.fail_after(PATIENCE):
            while len(world.prompts()) < 2:
                await anyio.sleep(0.02)
        journal = await finished_journal(agent)
    assert calls_of(before) == [("shell", {**command, "background": True})]
    assert task.id in world.lines("tool-results")[0]["content"][0]["text"]
    assert world.prompts()[1].startswith("[notice]")
    assert [body.source for body in journal if isinstance(body, Input)] == ["person", "task"]


@pytest.mark.promise("L4")
@pytest.mark.parametrize(
    "point", ["approval_pending", "call_intent_recorded", "result_not_recorded", "result_recorded"]
)
async def test_a_call_of_our_tool_survives_a_kill_and_is_recorded_once(world: World, point: str) -> None:
    (world.home / "config.toml").write_text(ASK_FIRST)
    settings = {"runtime.name": "acp", "acp.command": world.command("mcp")}
    words = do(("say", "I look."), report("c1", "pending"), ("mcp-once", "tasks", LIST), ("say", "ok"))
    killed_at(point, world.home.parent, settings, words, "" if point == "approval_pending" else "once")
    with anyio.fail_after(PATIENCE):
        async with outrider.open(config=load(world.home, {}, settings), workspace=world.work) as agent:
            await agent.resume_all()
            session = await agent.find("s")
            for question in await agent.questions(session):
                await agent.answer(session, question, "once")
            await agent.wait(session)
            journal = [entry.body for entry in await agent.journal(session)]
    assert isinstance(journal[-1], Ended)
    assert journal[-1].outcome == "done"
    assert calls_of(journal) == [("tasks", LIST)]
    counts = [sum(isinstance(body, kind) for body in journal) for kind in (Asked, Answered, Begun, Result)]
    assert counts == [1, 1, 1, 1]
    (call,) = [call for body in journal if isinstance(body, Reply) for call in body.calls]
    assert isinstance(call, Call)
    if point != "result_recorded":
        assert "- tasks" in world.prompts()[1]
