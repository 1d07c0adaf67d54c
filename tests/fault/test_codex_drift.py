"""Codex whose messages differ in one field from those of the tested version: every turn ends, and with words.

The messages are those of the program's own schema, and those of a scripted app-server, which is a process of its own.
With `--hypothesis-profile=long`, every difference is tried in the process, and 100 with a restart; else a sample.
"""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from msgspec import Raw

from outrider.core.events import Reply, Result
from outrider.runtimes.codex.approvals import (
    COMMAND,
    ELICITATION,
    PATCH,
    PERMISSIONS,
    ApprovalContext,
    call_of_request,
    is_yes_no,
    parse_approval_request,
    render_response,
    unread_parts,
)
from outrider.runtimes.codex.errors import CodexFailed
from outrider.runtimes.codex.notifications import ItemTracker, NotificationReader, call_of_item
from outrider.runtimes.codex.protocol import (
    CodexTurn,
    parse_account,
    parse_config_warning,
    parse_configured_model,
    parse_default_model,
    parse_is_active,
    parse_item,
    parse_model,
    parse_projects,
    parse_server_request,
    parse_thread_id,
    parse_turn_id,
    parse_turns,
    parse_user_agent,
)
from outrider.runtimes.codex.sandbox_policy import SandboxPolicy, parse_sandbox_policy
from outrider.runtimes.codex.watchdog import END_TIMEOUT, TurnWatchdog
from outrider.runtimes.external.recorder import TurnRecorder
from outrider.runtimes.jsonrpc.connection import RpcMessage, RpcNotification, RpcRequest, parse_message
from tests.support.codex import codex_binary
from tests.support.codex_drift import DriftingCodex, codex_messages, response_samples
from tests.support.drift import Drift, chosen, drifts
from tests.support.survivors import end_all
from tests.support.turns import MemoryTurn

pytestmark = [pytest.mark.anyio, pytest.mark.promise("L3"), pytest.mark.promise("L12"), pytest.mark.timeout(300)]
ID = "some text"
"""Every text in a sample, also the ids of its thread, turn and item."""
AFTER_RESTART = ("initialize", "account/read", "config/read", "thread/resume", "thread/turns/list", "turn/start")
PARSERS = (
    *(parse_account, parse_config_warning, parse_configured_model, parse_default_model, parse_is_active, parse_model),
    *(parse_projects, parse_thread_id, parse_turn_id, parse_turns, parse_user_agent),
)


class PlayedTurn:
    """A turn in memory that reads notifications."""

    def __init__(self) -> None:
        self.turn = MemoryTurn("codex")
        self.recorder = TurnRecorder(self.turn, "codex", str)
        self.watchdog = TurnWatchdog(anyio.current_time(), 600, 90)
        self.reader = NotificationReader(self.turn, self.recorder, self.watchdog, ItemTracker(ID))

    async def read(self, message: dict[str, Any]) -> CodexTurn | None:
        match parsed(message):
            case RpcNotification() as notification:
                return await self.reader.handle(notification)
            case _:
                return None

    @property
    def notes(self) -> list[str]:
        return [delta.text for delta in self.turn.deltas if delta.kind == "note"]

    def assert_each_call_has_one_result(self) -> None:
        calls = [c.id for e in self.turn.entries if isinstance(e.body, Reply) for c in e.body.calls]
        assert calls == [entry.body.call for entry in self.turn.entries if isinstance(entry.body, Result)]


def parsed(message: dict[str, Any]) -> RpcMessage | None:
    try:
        found = parse_message(json.dumps(message).encode())
    except msgspec.DecodeError:
        return None
    return found if isinstance(found, RpcNotification | RpcRequest) else None


def turn_completed(**turn: Any) -> dict[str, Any]:
    return {"method": "turn/completed", "params": {"threadId": ID, "turn": {"id": ID, **turn}}}


async def test_no_notification_that_differs_in_one_field_ends_a_turn_without_words_or_loses_a_call(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL, "outrider.codex")
    count = 0
    for message in codex_messages("ServerNotification"):
        for drift in drifts(message):
            count += 1
            played = PlayedTurn()
            try:
                if message["method"] == "item/completed":
                    await played.read({**message, "method": "item/started"})
                ended = await played.read(drift.apply(message))
                if ended is None and message["method"] != "turn/completed":
                    ended = await played.read(turn_completed(status="completed"))
            except CodexFailed:
                continue
            except Exception as error:
                raise AssertionError(f"{message['method']}: {drift}") from error
            await played.recorder.close()
            played.assert_each_call_has_one_result()
            is_lost = message["method"] == "turn/completed" and (
                drift.path[0] == "method" or (drift.path, drift.how) == (("params", "turn", "id"), "number as")
            )
            assert isinstance(ended, CodexTurn) != is_lost, (message["method"], str(drift))
    assert count > 20_000


async def test_a_turn_whose_end_is_lost_ends_soon_after_the_report_that_its_thread_is_idle() -> None:
    watchdog = TurnWatchdog(0, 600, 90)
    watchdog.turn_started(0)
    watchdog.thread_status_changed("active", 1)
    assert watchdog.check(80) == ""
    watchdog.thread_status_changed("idle", 100)
    assert [watchdog.check(100 + seconds) for seconds in (0, END_TIMEOUT - 1, END_TIMEOUT)] == ["", "", "idle"]
    watchdog.confirmed_alive(106)
    assert watchdog.check(110) == ""


@pytest.mark.behaviour("A15")
def test_no_request_that_differs_in_one_field_is_shown_as_less_than_it_is() -> None:
    item = {"type": "fileChange", "id": ID, "changes": [{"path": "/w/a", "kind": {"type": "add"}, "diff": "x"}]}
    items = {PATCH: parse_item(Raw(json.dumps(item).encode()))}
    context = ApprovalContext("/w", SandboxPolicy(is_enforced=True))
    count = 0
    for message in codex_messages("ServerRequest"):
        method = message["method"]
        for drift in drifts(message):
            count += 1
            request = parsed(drift.apply(message))
            if request is None:
                assert drift.path in {("method",), ("params",)}
                continue
            if isinstance(request, RpcNotification) or request.method not in {COMMAND, PATCH, PERMISSIONS, ELICITATION}:
                # Without an id or a known method it is refused.
                continue
            params = parse_server_request(request.params)
            unread = unread_parts(method, params, items.get(method))
            asked = parse_approval_request(method, params, items.get(method), context)
            call_of_request(method, params, request.id, "/w")
            assert isinstance(is_yes_no(method, params), bool)
            assert json.dumps(render_response(method, params, "deny"))
            if not unread and method == COMMAND:
                assert (asked.command, asked.needs) == (ID, ("host",)) or params.network_approval_context, str(drift)
            elif not unread and method == PATCH:
                assert asked.command == "add /w/a\nx"
            elif not unread and method == ELICITATION:
                assert ID in asked.command or any(ID in detail.text for detail in asked.details), str(drift)
    assert count > 4_000


@pytest.mark.behaviour("A15")
@pytest.mark.parametrize(
    ("method", "params", "unread"),
    [
        (COMMAND, {"itemId": "i", "command": ["rm", "x"]}, ["command"]),
        (COMMAND, {"itemId": "i", "command": None}, ["command"]),
        (COMMAND, {"itemId": "i", "command": "ls", "cwd": 7, "reason": {}}, ["reason", "cwd"]),
        (COMMAND, {"itemId": "i", "command": "ls", "additionalPermissions": "all"}, ["additionalPermissions"]),
        (PATCH, {"itemId": "i"}, ["changes"]),
        (PERMISSIONS, {"itemId": "i", "permissions": "all"}, ["permissions"]),
        (PERMISSIONS, {"itemId": "i"}, ["permissions"]),
        (ELICITATION, {"serverName": "s", "message": {}}, ["message"]),
        (ELICITATION, {"message": "may I"}, ["serverName"]),
    ],
)
def test_a_request_without_what_a_person_must_know_is_denied(
    method: str, params: dict[str, Any], unread: list[str]
) -> None:
    assert unread_parts(method, parse_server_request(Raw(json.dumps(params).encode())), None) == unread


@pytest.mark.parametrize(
    "changes",
    [
        [{"path": "/w/a", "kind": {"type": "update", "move_path": ["/etc/x"]}, "diff": "x"}],
        [{"path": "/w/a", "kind": 7, "diff": "x"}],
        [{"path": "/w/a", "kind": "add", "diff": "x"}, "and another"],
        [{"path": "/w/a", "kind": "add", "diff": {}}],
        "all",
        [],
    ],
)
def test_a_patch_that_can_be_read_only_in_part_is_denied(changes: Any) -> None:
    item = parse_item(Raw(json.dumps({"type": "fileChange", "id": "i", "changes": changes}).encode()))
    params = parse_server_request(Raw(b'{"itemId":"i"}'))
    assert [name.partition("[")[0] for name in unread_parts(PATCH, params, item)] == ["changes"]


def test_every_response_that_differs_in_one_field_is_read() -> None:
    count = 0
    for _, sample in response_samples():
        for drift in drifts({"result": sample}):
            count += 1
            raw = Raw(json.dumps(drift.apply({"result": sample}).get("result")).encode())
            for parse in PARSERS:
                parse(raw)
            parse_sandbox_policy(raw, SandboxPolicy())
    assert count > 1_000


@pytest.mark.parametrize(
    ("item", "text"),
    [
        (
            {"type": "commandExecution", "command": "ls", "status": "completed", "aggregatedOutput": [1]},
            "[Outrider could not read: aggregatedOutput]",
        ),
        (
            {"type": "commandExecution", "command": "ls", "status": "timedOut", "aggregatedOutput": "a"},
            "a\n[Codex reports the status `timedOut`, which Outrider does not know]",
        ),
        ({"type": "agentMessage", "text": {"parts": []}}, "[Codex sent a message that Outrider could not read]"),
    ],
)
async def test_what_is_lost_of_a_message_or_an_output_is_in_the_journal_and_shown(item: Any, text: str) -> None:
    played = PlayedTurn()
    await played.read({"method": "item/completed", "params": {"turnId": ID, "item": {"id": "i", **item}}})
    await played.recorder.close()
    texts = [entry.body.text for entry in played.turn.entries if isinstance(entry.body, Reply | Result)]
    assert text in texts
    assert bool(played.notes) == (item.get("status") != "timedOut")


async def test_a_message_whose_text_cannot_be_read_is_recorded_as_it_was_streamed() -> None:
    played = PlayedTurn()
    for piece in ("all ", "done"):
        params = {"turnId": ID, "itemId": "m", "delta": piece}
        await played.read({"method": "item/agentMessage/delta", "params": params})
    item = {"type": "agentMessage", "id": "m", "text": 7}
    await played.read({"method": "item/completed", "params": {"turnId": ID, "item": item}})
    await played.recorder.close()
    assert [e.body.text for e in played.turn.entries if isinstance(e.body, Reply)] == ["all done"]
    assert played.notes == ["Outrider could not read all that Codex sent: item/completed: text"]


async def test_an_item_that_completes_without_its_type_or_id_is_the_one_that_started() -> None:
    played = PlayedTurn()
    started = {"type": "commandExecution", "id": "c", "command": "ls", "processId": "1", "status": "inProgress"}
    await played.read({"method": "item/started", "params": {"turnId": ID, "item": started}})
    ended = {"type": None, "status": "completed", "aggregatedOutput": "a\n", "exitCode": 0}
    await played.read({"method": "item/completed", "params": {"turnId": ID, "item": ended}})
    await played.recorder.close()
    played.assert_each_call_has_one_result()
    assert [e.body.text for e in played.turn.entries if isinstance(e.body, Result)] == ["a\n"]


async def test_an_item_of_an_unknown_type_is_shown_once_and_is_no_call() -> None:
    played = PlayedTurn()
    item = {"type": "hologram", "id": "h"}
    for _ in range(2):
        await played.read({"method": "item/completed", "params": {"turnId": ID, "item": item}})
    assert played.notes == ["Outrider could not read all that Codex sent: item: the type `hologram`"]
    assert call_of_item(parse_item(Raw(json.dumps(item).encode()))) is None


@pytest.fixture
def codex(tmp_path: Path) -> Iterator[DriftingCodex]:
    yield DriftingCodex(tmp_path)
    end_all(tmp_path)


@pytest.mark.timeout(3_600)
async def test_differences_in_a_running_program_end_every_turn_with_words(codex: DriftingCodex) -> None:
    every = await codex.turn_differences()
    assert len(every) > 3_000
    async with codex.open_agent() as agent:
        for difference in chosen(every, 25):
            await codex.assert_turn_ends(agent, difference)


@pytest.mark.timeout(3_600)
async def test_differences_after_a_restart_end_every_turn_with_words(codex: DriftingCodex) -> None:
    every = await codex.restart_differences()
    assert {name for name, _, _ in every} == {f"response {method}" for method in AFTER_RESTART}
    for number, difference in enumerate(chosen(every, 6, most=100), 3):
        await codex.assert_turn_ends_after_restart(difference, number)


@pytest.mark.parametrize(
    ("name", "drift", "words"),
    [
        ("turn/completed", Drift(("method",), "drop"), "did not say in a readable way how it ended"),
        ("turn/completed", Drift(("params", "turn", "status"), "unknown", "paused"), "the status `paused`, which"),
        ("turn/completed", Drift(("params", "turn"), "rename"), "with no readable status"),
        ("turn/completed", Drift(("params", "threadId"), "drop"), ""),
        ("turn/completed", Drift(("params", "turn", "items"), "null as"), ""),
        ("response turn/start", Drift(("result", "turn", "id"), "drop"), "could not read its id"),
        ("response turn/start", Drift(("result",), "drop"), "could not read its id"),
        ("response thread/start", Drift(("result", "thread"), "number as", 7), "did not return its id"),
        (COMMAND, Drift(("id",), "drop"), "gives no id to answer it"),
        (COMMAND, Drift(("id",), "array as", ["x"]), ""),
    ],
)
async def test_a_turn_that_cannot_be_followed_ends_with_words(
    codex: DriftingCodex, name: str, drift: Drift, words: str
) -> None:
    async with codex.open_agent() as agent:
        turn = await codex.assert_turn_ends(agent, (name, 1, drift))
        assert words in turn.error
        assert turn.outcome == ("failed" if words else "done")


def test_the_tested_codex_describes_its_messages() -> None:
    assert len({message["method"] for message in codex_messages("ServerNotification")}) > 80
    assert codex_binary()
