"""ACP agents whose login or key is rejected: the turn fails at once and says how to log in."""

from pathlib import Path
from typing import Any

import pytest

from outrider.core.events import Ended, Reply
from outrider.runtimes.acp.errors import USE_NATIVE_HINT
from tests.support.acp import World, do, finished_journal, post

pytestmark = pytest.mark.anyio
LOGIN = "scripted requires a login: Log in on the web (run `scripted login`). Then send your message again"
GEMINI = '{"error":{"code":401,"message":"API key not valid.","status":"UNAUTHENTICATED"}}'


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def run(world: World, *acts: Any) -> tuple[Ended, list[str]]:
    """How the turn ended, and the agent's messages."""
    async with world.open_agent() as agent:
        await post(agent, do(*acts))
        journal = await finished_journal(agent)
    ended = journal[-1]
    assert isinstance(ended, Ended)
    return ended, [body.text for body in journal if isinstance(body, Reply) and body.text]


@pytest.mark.parametrize(
    ("acts", "detail"),
    [
        ([("error", -32000, "Authentication required", None)], ""),
        ([("error", 401, GEMINI, None)], f" (it said: {GEMINI} (401))"),
        (
            [("error", -32603, "Internal error: bad key", {"errorName": "APIError"})],
            ' (it said: Internal error: bad key (-32603): {"errorName": "APIError"})',
        ),
        ([("say", "HTTP 401"), ("say", ": bad key"), ("stop", "end_turn")], " (it said: HTTP 401: bad key (-32000))"),
        ([*[("stderr", "request failed: HTTP 401, retrying")] * 3, ("hang",)], " (it said: request failed: HTTP 401, "),
        ([*[("say", "API error 401 Unauthorized, retrying")] * 3, ("hang",)], " (it said: API error 401 Unauthorized"),
    ],
    ids=["required", "gemini-cli", "opencode", "hermes-acp", "retries in its log", "retries in messages"],
)
async def test_a_rejected_login_fails_the_turn_and_says_how_to_log_in(
    world: World, acts: list[Any], detail: str
) -> None:
    ended, replies = await run(world, *acts)
    assert (ended.outcome, replies) == ("failed", [])
    assert ended.reason.startswith(LOGIN + detail)
    assert ended.reason.endswith(USE_NATIVE_HINT)


async def test_after_a_rejected_login_the_next_turn_starts_another_process_in_the_same_session(world: World) -> None:
    async with world.open_agent() as agent:
        await post(agent, do(("error", -32000, "Authentication required", None)))
        await finished_journal(agent)
        await post(agent, do(("say", "I am in")))
        journal = await finished_journal(agent)
    assert [body.text for body in journal if isinstance(body, Reply) and body.text] == ["I am in"]
    assert (len(world.lines("pids")), len(world.received("session/new"))) == (2, 1)


@pytest.mark.parametrize(
    ("acts", "reply"),
    [
        ([("say", "HTTP 401: Unauthorized means that a login is missing.")], "HTTP 401: Unauthorized means"),
        ([("say", "The error is in line 401"), ("stop", "end_turn")], "The error is in line 401"),
        ([("say", "I look."), *[("stderr", "status 401")] * 4, ("say", " Ok"), ("stop", "end_turn")], "I look. Ok"),
        ([*[("stderr", "warning at line 401")] * 4, ("say", "Fine"), ("stop", "end_turn")], "Fine"),
    ],
)
async def test_a_message_or_a_log_with_that_number_is_no_rejected_login(
    world: World, acts: list[Any], reply: str
) -> None:
    ended, replies = await run(world, *acts)
    assert ended.outcome == "done"
    assert replies[0].startswith(reply)


async def test_an_error_in_line_401_is_no_rejected_login(world: World) -> None:
    ended, _ = await run(world, ("error", -32603, "SyntaxError: line 401", None))
    assert ended.reason == f"scripted: SyntaxError: line 401 (-32603); {USE_NATIVE_HINT}"
