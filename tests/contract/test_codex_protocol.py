"""Every message between Outrider and Codex, in all kinds of turns and both directions, matches Codex's own schema."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import jsonschema_rs
import pytest

from outrider.app.agent import Agent
from outrider.core.events import Asked, Begun, Ended, Entry
from outrider.core.store_port import Session
from tests.support.codex_schema import NEWS, QUESTIONS, REQUESTS, checked, recorded
from tests.support.scripted_codex import ScriptedCodex
from tests.support.survivors import end_all

pytestmark = pytest.mark.anyio
TERMINAL = "terminal:test"
SCHEMA_NAMES = {
    "item/agentMessage/delta": "AgentMessageDelta",
    "item/reasoning/summaryTextDelta": "ReasoningSummaryTextDelta",
    "thread/tokenUsage/updated": "ThreadTokenUsageUpdated",
    "thread/status/changed": "ThreadStatusChanged",
    "item/started": "ItemStarted",
    "item/completed": "ItemCompleted",
    "turn/started": "TurnStarted",
    "turn/completed": "TurnCompleted",
    "serverRequest/resolved": "ServerRequestResolved",
    "error": "Error",
}


@pytest.fixture
def codex(tmp_path: Path) -> Iterator[ScriptedCodex]:
    yield ScriptedCodex(tmp_path)
    end_all(tmp_path)


async def every_kind_of_turn(codex: ScriptedCodex) -> None:
    """Words, thoughts, commands, questions, patches, tools, steering, a stop, a retry, a failure, a restart."""
    codex.will(
        [
            {"think": "hm"},
            {"say": "first"},
            {"run": "true", "asks": True},
            {"patch": {"made": "x"}},
            {"tool": "tasks", "args": {"do": "list"}},
            {"retry": "cut off"},
            {"say": "done"},
        ],
        [{"run": "touch began; exec sleep 1000"}],
        [{"run": "true", "asks": True}, {"fail": {"message": "no luck"}}],
    )
    with anyio.fail_after(60):
        async with codex.open_agent() as agent:
            session = await agent.session("s")
            await agent.post("go", session=session, address=TERMINAL)
            async for event in agent.follow(session):
                if isinstance(event, Entry) and isinstance(event.body, Asked):
                    await agent.post("and this", session=session, address=TERMINAL)
                    while not codex.requests("turn/steer"):
                        await anyio.sleep(0.02)
                    await agent.answer(session, event.body, "once")
                elif isinstance(event, Entry) and isinstance(event.body, Ended):
                    break
            head = (await agent.post("again", session=session, address=TERMINAL)).seq
            # The file shows that the command runs, the entry that the turn is known here: then it can be interrupted.
            while not (codex.work / "began").exists() or not await has_begun(agent, session, head):
                await anyio.sleep(0.02)
            await agent.stop(session)
            while (await agent.find("s")).has_work:
                await anyio.sleep(0.02)
        async with codex.open_agent() as agent:
            assert (await agent.say("once more", session="s")).outcome == "failed"


async def has_begun(agent: Agent, session: Session, after: int) -> bool:
    return any(isinstance(entry.body, Begun) for entry in await agent.journal(session, after))


def broken(name: str, value: Any) -> list[str]:
    schema = checked(name, recorded())
    return [f"{name}: {error}" for error in jsonschema_rs.iter_errors(schema, value)]


async def test_every_message_we_send_matches_the_schema_of_codex(codex: ScriptedCodex) -> None:
    await every_kind_of_turn(codex)
    asked = {message["id"]: message["method"] for message in codex.messages("said") if {"id", "method"} <= set(message)}
    errors: list[str] = []
    methods: set[str] = set()
    for message in codex.messages("received"):
        if "result" in message:
            errors += broken(QUESTIONS[asked[message["id"]]] + "Response", message["result"])
        elif message["method"] != "initialized":
            methods.add(message["method"])
            errors += broken(REQUESTS[message["method"]] + "Params", message.get("params"))
    assert errors == []
    assert {"thread/start", "thread/resume", "turn/start", "turn/steer", "turn/interrupt"} <= methods


async def test_every_message_of_the_scripted_app_server_matches_the_schema_of_codex(codex: ScriptedCodex) -> None:
    await every_kind_of_turn(codex)
    errors: list[str] = []
    for message in codex.messages("said"):
        if (method := message.get("method")) is None:
            continue
        name = QUESTIONS[method] + "Params" if "id" in message else SCHEMA_NAMES[method] + "Notification"
        errors += broken(name, message["params"])
    assert sorted(set(errors)) == []
    assert set(SCHEMA_NAMES.values()) <= set(NEWS)
