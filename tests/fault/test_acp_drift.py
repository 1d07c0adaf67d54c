"""ACP agents whose messages differ in one field from the protocol: every turn ends, and with words.

The messages are those of the schema in the protocol's own package, and those of a scripted agent, which is a process.
With `--hypothesis-profile=long`, every difference is tried, else a sample.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
from msgspec import Raw

from outrider.core.events import Reply, Result
from outrider.runtimes.acp.protocol import (
    InitializeResponse,
    NewSessionResponse,
    parse_or_none,
    parse_permission_request,
    parse_prompt_response,
)
from tests.support.acp import do
from tests.support.acp_drift import AT_START, DriftingAgent, drifted, samples
from tests.support.drift import Drift, chosen, drifts

T = TypeVar("T")
pytestmark = [pytest.mark.anyio, pytest.mark.promise("L3"), pytest.mark.promise("L12"), pytest.mark.timeout(3_600)]


@pytest.fixture
def agents(tmp_path: Path) -> DriftingAgent:
    return DriftingAgent(tmp_path)


def raw(value: object) -> Raw:
    return Raw(json.dumps(value).encode())


async def test_no_update_that_differs_in_one_field_ends_a_turn(agents: DriftingAgent) -> None:
    every = drifted("SessionNotification", "session/update")
    assert len(every) > 6_000
    async with agents.open_agent() as agent:
        for some in batched([message for _, message in chosen(every, 400)], 200):
            (agents.world.agents / "updates").write_text("\n".join(map(json.dumps, some)))
            turn = await agents.run(agent, do(["play", "updates", 0], ["say", "\n\nall done", "last"]))
            assert (turn.outcome, turn.error, turn.text[-8:]) == ("done", "", "all done")


@pytest.mark.behaviour("A15")
async def test_every_permission_request_that_differs_in_one_field_is_answered_and_none_is_granted_unread(
    agents: DriftingAgent,
) -> None:
    every = chosen(drifted("RequestPermissionRequest", "session/request_permission"), 100)
    numbered = {number: {**message, "id": number} for number, (_, message) in enumerate(every, 1)}
    async with agents.open_agent() as agent:
        for some in batched(list(numbered), 50):
            (agents.world.agents / "asked").write_text("\n".join(json.dumps(numbered[number]) for number in some))
            turn = await agents.run(agent, do(["play", "asked", some[-1]], ["say", "all done"]))
            assert (turn.outcome, turn.error) == ("done", "")
    answers = {line["id"]: line["answer"] for line in agents.world.lines("numbered")}
    assert answers.keys() == numbered.keys()
    for number, answer in answers.items():
        if "code" not in answer:
            assert answer["outcome"]["outcome"] in ("selected", "cancelled")
            request = parse_permission_request(raw(numbered[number].get("params")))
            rejecting = {"", *(option.option_id for option in request.options if option.kind.startswith("reject"))}
            assert not request.unread_parts or answer["outcome"].get("optionId", "") in rejecting, every[number - 1][0]


def batched(values: Sequence[T], size: int) -> list[Sequence[T]]:
    return [values[start : start + size] for start in range(0, len(values), size)]


@pytest.mark.parametrize(
    ("call", "unread"),
    [
        (None, ("toolCall",)),
        ({"toolCallId": "c"}, ("toolCall",)),
        ({"toolCallId": "c", "title": ["rm"]}, ("toolCall.title",)),
        ({"toolCallId": "c", "title": "rm x", "kind": 7}, ("toolCall.kind",)),
        ({"toolCallId": "c", "title": "rm x"}, ()),
        ({"toolCallId": "c", "rawInput": {"command": "rm x"}}, ()),
    ],
)
def test_a_permission_for_what_cannot_be_read_is_denied(call: Any, unread: tuple[str, ...]) -> None:
    params = {"sessionId": "s", "toolCall": call, "options": [{"optionId": "1"}, {"kind": "allow_once"}, 7]}
    assert parse_permission_request(raw(params)).unread_parts == unread


def test_every_response_that_differs_in_one_field_is_read() -> None:
    count = 0
    for name in ("InitializeResponse", "NewSessionResponse", "PromptResponse"):
        for sample in samples(name)[:3]:
            for drift in drifts({"result": sample}):
                count += 1
                result = raw(drift.apply({"result": sample}).get("result"))
                info = parse_or_none(result, InitializeResponse) or InitializeResponse()
                assert {info.can_load, info.can_resume, info.accepts_images} <= {True, False}
                parse_or_none(result, NewSessionResponse)
                parse_prompt_response(result).tokens()
    assert count > 1_000


async def test_differences_in_a_running_agent_end_every_turn_with_words(agents: DriftingAgent) -> None:
    every = [each for each in await agents.differences() if each[0] not in AT_START]
    assert len(every) > 500
    async with agents.open_agent() as agent:
        for difference in chosen(every, 30):
            await agents.assert_turn_ends(difference, agent)


async def test_differences_at_the_start_of_an_agent_end_every_turn_with_words(agents: DriftingAgent) -> None:
    every = [each for each in await agents.differences() if each[0] in AT_START]
    for difference in chosen(every, 2):
        await agents.assert_turn_ends(difference)


@pytest.mark.parametrize(
    ("name", "drift", "words"),
    [
        ("response initialize", Drift(("result", "protocolVersion"), "drop"), "did not say which version of ACP"),
        ("response session/new", Drift(("result", "sessionId"), "object as", {}), "could not read its id"),
        ("response session/new", Drift(("result",), "drop"), "answered with something that is not ACP"),
        ("response session/prompt", Drift(("error",), "add", "it broke"), "it broke"),
    ],
)
async def test_an_agent_that_cannot_be_followed_ends_the_turn_with_words(
    agents: DriftingAgent, name: str, drift: Drift, words: str
) -> None:
    turn = await agents.assert_turn_ends((name, 1, drift))
    assert turn.outcome == "failed"
    assert words in turn.error


@pytest.mark.parametrize(
    ("drift", "cut"),
    [
        (
            Drift(("result", "stopReason"), "unknown", "tired"),
            "the agent stopped for a reason that Outrider does not know: `tired`",
        ),
        (Drift(("result", "stopReason"), "drop"), "the agent did not say why it stopped"),
        (Drift(("result",), "null as"), "the agent did not say why it stopped"),
    ],
)
async def test_an_unknown_or_missing_stop_reason_is_said(agents: DriftingAgent, drift: Drift, cut: str) -> None:
    async with agents.open_agent() as agent:
        turn = await agents.assert_turn_ends(("response session/prompt", 1, drift), agent)
        (session,) = await agent.sessions()
        journal = [entry.body for entry in await agent.journal(session)]
    assert turn.outcome == "done"
    assert [body.cut for body in journal if isinstance(body, Reply) and body.cut] == [cut]


async def test_a_message_that_cannot_be_read_has_a_mark_in_its_place(agents: DriftingAgent) -> None:
    chunk = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": ["parts"]}}
    async with agents.open_agent() as agent:
        turn = await agents.run(agent, do(["say", "one "], ["update", chunk], ["say", " three"]))
    assert turn.text == "one [a part of the message that Outrider could not read] three"


async def test_a_call_with_an_unknown_status_has_a_result(agents: DriftingAgent) -> None:
    update = {"sessionUpdate": "tool_call", "toolCallId": "c", "title": "Look", "kind": "hologram", "status": "paused"}
    async with agents.open_agent() as agent:
        await agents.run(agent, do(["update", update], ["say", "ok"]))
        (session,) = await agent.sessions()
        journal = [entry.body for entry in await agent.journal(session)]
    assert [body.text for body in journal if isinstance(body, Result)] == ["the agent did not report a result"]
