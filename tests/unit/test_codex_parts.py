"""The pure parts of the Codex runtime: items, errors, approvals and the watchdog."""

from collections.abc import Callable
from typing import cast

import msgspec
import pytest
from msgspec import Raw

from outrider.core.approvals import ApprovalRequest, RequestDetail
from outrider.runtimes.codex.app_server import ThreadMessages
from outrider.runtimes.codex.approvals import (
    COMMAND,
    ELICITATION,
    PATCH,
    ApprovalContext,
    is_yes_no,
    parse_approval_request,
    render_response,
)
from outrider.runtimes.codex.errors import is_login_error, process_exited, request_failed, turn_failed
from outrider.runtimes.codex.launch import trust
from outrider.runtimes.codex.notifications import (
    call_of_item,
    call_without_item,
    is_aborted,
    outcome_of_item,
    plain_command,
)
from outrider.runtimes.codex.protocol import (
    CodexError,
    RawItem,
    ServerRequestParams,
    client_id,
    parse_client_id,
    parse_item,
    parse_needs_login,
    parse_notification,
    parse_thread_id,
)
from outrider.runtimes.codex.watchdog import TurnWatchdog
from outrider.runtimes.external.recorder import CallOutcome, ExternalCall
from outrider.runtimes.jsonrpc.connection import RpcNotification
from outrider.runtimes.jsonrpc.errors import ProcessExited, RpcError
from outrider.runtimes.jsonrpc.process import Child


def raw(value: object) -> Raw:
    return Raw(msgspec.json.encode(value))


@pytest.mark.behaviour("A14")
@pytest.mark.parametrize(
    "answer",
    [
        {"thread": {"id": "t"}},
        {"thread": {"sessionId": "t"}},
        {"thread": None, "sessionId": "t"},
        {"threadId": "t"},
        {"thread": {"id": 7, "sessionId": "t"}},
    ],
)
def test_a_thread_id_is_found_in_every_spelling(answer: object) -> None:
    assert parse_thread_id(raw(answer)) == "t"


@pytest.mark.parametrize("answer", [{}, {"thread": {}}, [], None, "t", {"thread": "t"}])
def test_a_missing_thread_id_is_empty(answer: object) -> None:
    assert parse_thread_id(raw(answer)) == ""


@pytest.mark.parametrize(
    ("item", "call", "outcome"),
    [
        (
            {"type": "commandExecution", "id": "1", "command": "/bin/bash -lc 'echo a'", "cwd": "/w", "exitCode": 0}
            | {"status": "completed", "aggregatedOutput": "a\n", "something": "new"},
            ExternalCall("1", "shell", {"command": "echo a", "cwd": "/w"}),
            CallOutcome("a\n", details="exit 0"),
        ),
        (
            {"type": "commandExecution", "id": "1", "command": "x", "status": "failed", "exitCode": -1},
            ExternalCall("1", "shell", {"command": "x", "cwd": ""}),
            CallOutcome("\n[it was terminated]", failed=True, details="exit -1"),
        ),
        (
            {"type": "commandExecution", "id": "1", "command": "x", "status": "declined"},
            ExternalCall("1", "shell", {"command": "x", "cwd": ""}),
            CallOutcome("not run: it was not allowed", failed=True),
        ),
        (
            {"type": "fileChange", "id": "2", "status": "completed"}
            | {"changes": [{"path": "/w/a", "kind": {"type": "update"}, "diff": "@@"}]},
            ExternalCall("2", "patch", {"changes": [{"path": "/w/a", "kind": "update", "diff": "@@"}]}),
            CallOutcome("update /w/a", details="1 file"),
        ),
        (
            {"type": "mcpToolCall", "id": "3", "server": "pk", "tool": "poke", "arguments": {"a": 1}}
            | {"status": "completed", "result": {"content": [{"type": "text", "text": "ouch"}]}},
            ExternalCall("3", "mcp_pk_poke", {"a": 1}),
            CallOutcome("ouch"),
        ),
        (
            {"type": "mcpToolCall", "id": "3", "server": "pk", "tool": "poke", "status": "failed"}
            | {"error": {"message": "no"}},
            ExternalCall("3", "mcp_pk_poke", {}),
            CallOutcome("no", failed=True),
        ),
        (
            {"type": "webSearch", "id": "4", "query": "q"},
            ExternalCall("4", "web_search", {"query": "q"}),
            CallOutcome("done"),
        ),
    ],
)
def test_an_item_is_parsed_into_a_call_and_its_outcome(item: object, call: ExternalCall, outcome: CallOutcome) -> None:
    parsed = parse_item(raw(item))
    assert (call_of_item(parsed), outcome_of_item(parsed)) == (call, outcome)


@pytest.mark.parametrize("kind", ["userMessage", "agentMessage", "reasoning", "dynamicToolCall", "tomorrow's", ""])
def test_an_item_without_a_call_or_of_an_unknown_type_has_none(kind: str) -> None:
    assert call_of_item(parse_item(raw({"type": kind, "id": "1"}))) is None


def test_a_command_without_an_item_is_taken_from_what_the_model_wrote_and_read() -> None:
    call = RawItem("function_call", "c", "exec_command", '{"cmd":"cat x"}')
    text = "Process exited with code 1\nOutput:\nno x"
    assert call_without_item(call, RawItem("function_call_output", "c", output=text)) == (
        ExternalCall("c", "shell", {"command": "cat x", "cwd": ""}),
        CallOutcome(text, failed=True),
    )
    assert call_without_item(RawItem("function_call", "c", "view_image"), RawItem(output="")) is None


@pytest.mark.parametrize(
    ("command", "plain"),
    [
        ("/bin/bash -lc 'echo a'", "echo a"),
        ("/usr/bin/zsh -c ls", "ls"),
        ("bash script.sh", "bash script.sh"),
        ("echo 'open", "echo 'open"),
    ],
)
def test_a_command_is_shown_without_the_shell_around_it(command: str, plain: str) -> None:
    assert plain_command(command) == plain


@pytest.mark.behaviour("A12")
@pytest.mark.parametrize(
    ("text", "aborted"), [("so <turn_aborted> it is", True), ("<turn_aborted/>", True), ("x", False)]
)
def test_an_aborted_turn_is_recognized_by_its_marker(text: str, aborted: bool) -> None:
    assert is_aborted(text) is aborted


@pytest.mark.behaviour("A13")
@pytest.mark.parametrize(
    "words",
    [
        "invalid_grant",
        "Your access token could not be refreshed because your refresh token has expired.",
        "your refresh token was already used. Please log out and sign in again.",
        "refresh_token_reused: refresh token was revoked",
        "unexpected status 401 Unauthorized: bad key, url: http://x",
        "unauthorized",
    ],
)
def test_rejected_credentials_are_reported_as_codex_login_in_every_error(words: str) -> None:
    errors = (
        turn_failed(CodexError(words)),
        turn_failed(CodexError("it failed", words)),
        request_failed(RpcError(-32600, words), "the turn"),
        process_exited(ProcessExited("codex", 1, 0, f"2026 ERROR {words}\n")),
    )
    assert all("run `codex login`" in str(error) for error in errors)
    assert is_login_error(words)


@pytest.mark.behaviour("A13")
def test_other_errors_are_reported_unchanged_with_a_hint() -> None:
    text = str(turn_failed(CodexError("model is asleep", "other", "try at 14:01")))
    assert text.startswith("model is asleep (try at 14:01). To continue without Codex: `/runtime native`")
    gone = str(process_exited(ProcessExited("codex", 101, 0, "thread 'main' panicked at x\n")))
    assert gone.startswith("codex ended with exit status 101. Its last output: thread 'main' panicked at x.")
    assert "codex login" not in text + gone


def test_a_required_login_is_recognized() -> None:
    assert parse_needs_login(raw({"account": None, "requiresOpenaiAuth": True}))
    assert not parse_needs_login(raw({"account": None, "requiresOpenaiAuth": False}))
    assert not parse_needs_login(raw({"account": {"type": "apiKey"}, "requiresOpenaiAuth": True}))


def test_a_person_is_shown_a_command_as_it_would_run() -> None:
    params = ServerRequestParams(item_id="1", command="/bin/bash -lc 'rm -rf x'", cwd="/w/sub", reason="to clean")
    asked = parse_approval_request(COMMAND, params, None, ApprovalContext("/w"))
    assert asked == ApprovalRequest(
        "shell", "rm -rf x", ("host",), "/w", "to clean", (RequestDetail("In the folder", "/w/sub"),)
    )
    wants_network = ServerRequestParams(
        command="curl x", cwd="/w", additional_permissions={"network": {"enabled": True}}
    )
    assert parse_approval_request(COMMAND, wants_network, None, ApprovalContext("/w")) == ApprovalRequest(
        "shell",
        "curl x",
        ("network",),
        "/w",
        details=(RequestDetail("With more permissions", '{"network":{"enabled":true}}'),),
    )


def test_a_person_is_shown_every_file_that_a_patch_writes() -> None:
    changes = [
        {"path": "/opt/x", "kind": {"type": "add"}, "diff": "hello\n"},
        {"path": "/w/y", "kind": {"type": "update", "move_path": "/opt/z"}, "diff": "+a\n"},
    ]
    item = parse_item(raw({"type": "fileChange", "id": "1", "changes": changes}))
    asked = parse_approval_request(PATCH, ServerRequestParams(item_id="1"), item, ApprovalContext("/w"))
    assert asked == ApprovalRequest(
        "patch",
        "add /opt/x\nhello\n\nupdate /w/y, then move it to /opt/z\n+a\n",
        ("write:/opt/x", "write:/w/y", "write:/opt/z"),
        "/w",
        details=(RequestDetail("All files", "/opt/x\n/w/y\n/opt/z"),),
    )


def test_what_codex_asks_for_besides_a_command_is_shown_too() -> None:
    params = ServerRequestParams(
        item_id="1",
        command="/w/bin/bash -lc ls",
        cwd="/w",
        kind="writeStdin",
        network_approval_context={"host": "a.test", "protocol": "https"},
    )
    assert parse_approval_request(COMMAND, params, None, ApprovalContext("/w")) == ApprovalRequest(
        "shell",
        "/w/bin/bash -lc ls",  # only in a folder of the system it is certainly a shell
        ("host",),
        "/w",
        details=(
            RequestDetail("This is input to a command that runs already"),
            RequestDetail("For the network host", '{"host":"a.test","protocol":"https"}'),
        ),
    )
    verify = ServerRequestParams(server_name="pk", message="Visit", url="https://a.test", title="T", description="D")
    assert parse_approval_request(ELICITATION, verify, None, ApprovalContext("/w")).details == (
        RequestDetail("title", "T"),
        RequestDetail("description", "D"),
        RequestDetail("url", "https://a.test"),
    )


def test_a_form_is_not_a_yes_or_no_question() -> None:
    form = ServerRequestParams(
        server_name="pk", requested_schema={"type": "object", "properties": {"name": {"type": "string"}}}
    )
    assert not is_yes_no(ELICITATION, form)
    assert is_yes_no(ELICITATION, ServerRequestParams(requested_schema={"type": "object", "properties": {}}))
    assert render_response(ELICITATION, form, "allow") == {"action": "accept", "content": {}}
    assert render_response(ELICITATION, form, "deny") == {"action": "decline"}
    assert render_response(COMMAND, form, "allow") == {"decision": "accept"}


@pytest.mark.parametrize(("text", "seq"), [(client_id(17), 17), ("outrider-x", 0), ("17", 0), (None, 0), ("", 0)])
def test_an_input_is_recognized_by_its_number(text: str | None, seq: int) -> None:
    assert parse_client_id(text) == seq


def test_unknown_and_missing_fields_of_a_message_do_no_harm() -> None:
    assert parse_notification(Raw(b"null")).thread_id == ""
    params = parse_notification(
        raw({"threadId": "t", "turn": {"id": "u", "status": "failed", "error": {"message": "m"}}, "x": 1})
    )
    assert (params.thread_id, params.turn.id, params.turn.error) == ("t", "u", CodexError("m"))


def test_a_folder_is_marked_as_not_trusted_unless_the_person_decided_otherwise() -> None:
    assert trust("/w/a", ()) == {"projects": {"/w/a": {"trust_level": "untrusted"}}}
    assert trust("/w/a", {"/w"}) == {}
    assert trust("/w/a", {"/w/ab"}) == {"projects": {"/w/a": {"trust_level": "untrusted"}}}


@pytest.mark.behaviour("A10")
def test_only_the_time_that_codex_works_is_counted() -> None:
    watch = TurnWatchdog(0, seconds=10, quiet=90)
    watch.answer_pending(4)
    assert (watch.check(500), watch.is_waiting) == ("", True)
    watch.answer_sent(500)
    assert (watch.check(505.9), watch.check(506)) == ("", "late")


@pytest.mark.behaviour("A11")
def test_silence_counts_only_after_a_tool_and_while_nothing_is_pending() -> None:
    watch = TurnWatchdog(0, seconds=1000, quiet=5)
    assert watch.check(100) == ""
    watch.tool_started("a")
    watch.tool_started("b")
    watch.tool_ended("a", 100)
    assert watch.check(200) == ""
    watch.tool_ended("b", 200)
    assert (watch.check(204.9), watch.check(205)) == ("", "quiet")
    watch.confirmed_alive(205)
    assert (watch.check(209), watch.check(210)) == ("", "quiet")
    watch.message_received(211)
    assert watch.check(400) == ""


@pytest.mark.anyio
@pytest.mark.parametrize("ends", [ThreadMessages.end, ThreadMessages.close])
async def test_a_message_for_a_thread_that_nobody_reads_any_more_is_dropped(
    ends: Callable[[ThreadMessages], None],
) -> None:
    messages = ThreadMessages(cast("Child", None))
    ends(messages)
    await messages.put(RpcNotification("thread/goal/cleared", msgspec.Raw(b"{}")))
    messages.end()
    messages.close()
