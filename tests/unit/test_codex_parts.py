"""The pure parts of the Codex runtime: what it says in our words, what went wrong, and when silence counts."""

import msgspec
import pytest
from msgspec import Raw

from outrider.core.approve import ApprovalRequest
from outrider.runtimes.codex.faults import is_login, of_fault, of_gone, of_rpc
from outrider.runtimes.codex.items import is_aborted, missing, outcome, parse_deed, plain_command
from outrider.runtimes.codex.launch import trust
from outrider.runtimes.codex.recover import client_id, parse_client_id
from outrider.runtimes.codex.watch import Watch
from outrider.runtimes.codex.wire import (
    Fault,
    RawItem,
    Wish,
    parse_is_barred,
    parse_item,
    parse_thread_id,
    parse_told,
)
from outrider.runtimes.codex.wishes import (
    COMMAND,
    ELICITATION,
    PATCH,
    Asker,
    can_be_asked,
    parse_request,
    render_answer,
)
from outrider.runtimes.jsonrpc import ChildGone, RpcError
from outrider.runtimes.outside.ledger import Deed, Outcome


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
def test_a_thread_id_is_found_wherever_it_stands(answer: object) -> None:
    assert parse_thread_id(raw(answer)) == "t"


@pytest.mark.parametrize("answer", [{}, {"thread": {}}, [], None, "t", {"thread": "t"}])
def test_no_thread_id_is_made_up(answer: object) -> None:
    assert parse_thread_id(raw(answer)) == ""


@pytest.mark.parametrize(
    ("item", "deed", "came"),
    [
        (
            {"type": "commandExecution", "id": "1", "command": "/bin/bash -lc 'echo a'", "cwd": "/w", "exitCode": 0}
            | {"status": "completed", "aggregatedOutput": "a\n", "something": "new"},
            Deed("1", "shell", {"command": "echo a", "cwd": "/w"}),
            Outcome("a\n", details="exit 0"),
        ),
        (
            {"type": "commandExecution", "id": "1", "command": "x", "status": "failed", "exitCode": -1},
            Deed("1", "shell", {"command": "x", "cwd": ""}),
            Outcome("\n[it was ended before its time]", failed=True, details="exit -1"),
        ),
        (
            {"type": "commandExecution", "id": "1", "command": "x", "status": "declined"},
            Deed("1", "shell", {"command": "x", "cwd": ""}),
            Outcome("not run: the person did not allow it", failed=True),
        ),
        (
            {"type": "fileChange", "id": "2", "status": "completed"}
            | {"changes": [{"path": "/w/a", "kind": {"type": "update"}, "diff": "@@"}]},
            Deed("2", "patch", {"changes": [{"path": "/w/a", "kind": "update", "diff": "@@"}]}),
            Outcome("update /w/a", details="1 file"),
        ),
        (
            {"type": "mcpToolCall", "id": "3", "server": "pk", "tool": "poke", "arguments": {"a": 1}}
            | {"status": "completed", "result": {"content": [{"type": "text", "text": "ouch"}]}},
            Deed("3", "mcp_pk_poke", {"a": 1}),
            Outcome("ouch"),
        ),
        (
            {"type": "mcpToolCall", "id": "3", "server": "pk", "tool": "poke", "status": "failed"}
            | {"error": {"message": "no"}},
            Deed("3", "mcp_pk_poke", {}),
            Outcome("no", failed=True),
        ),
        ({"type": "webSearch", "id": "4", "query": "q"}, Deed("4", "web_search", {"query": "q"}), Outcome("done")),
    ],
)
def test_what_codex_did_is_told_in_our_words(item: object, deed: Deed, came: Outcome) -> None:
    parsed = parse_item(raw(item))
    assert (parse_deed(parsed), outcome(parsed)) == (deed, came)


@pytest.mark.parametrize("kind", ["userMessage", "agentMessage", "reasoning", "dynamicToolCall", "tomorrow's", ""])
def test_what_does_nothing_or_is_not_known_is_no_deed(kind: str) -> None:
    assert parse_deed(parse_item(raw({"type": kind, "id": "1"}))) is None


def test_a_command_without_an_item_is_taken_from_what_the_model_wrote_and_read() -> None:
    call = RawItem("function_call", "c", "exec_command", '{"cmd":"cat x"}')
    said = "Process exited with code 1\nOutput:\nno x"
    assert missing(call, RawItem("function_call_output", "c", output=said)) == (
        Deed("c", "shell", {"command": "cat x", "cwd": ""}),
        Outcome(said, failed=True),
    )
    assert missing(RawItem("function_call", "c", "view_image"), RawItem(output="")) is None


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
def test_an_aborted_turn_is_known_by_its_mark(text: str, aborted: bool) -> None:
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
def test_refused_credentials_are_told_as_codex_login_wherever_they_show(words: str) -> None:
    errors = (
        of_fault(Fault(words)),
        of_fault(Fault("it failed", words)),
        of_rpc(RpcError(-32600, words), "the turn"),
        of_gone(ChildGone("codex", 1, 0, f"2026 ERROR {words}\n")),
    )
    assert all("run `codex login`" in str(error) for error in errors)
    assert is_login(words)


@pytest.mark.behaviour("A13")
def test_other_errors_are_told_as_they_are_with_the_way_back() -> None:
    said = str(of_fault(Fault("model is asleep", "other", "try at 14:01")))
    assert said.startswith("model is asleep (try at 14:01). To go on without Codex: `/runtime native`")
    gone = str(of_gone(ChildGone("codex", 101, 0, "thread 'main' panicked at x\n")))
    assert gone.startswith("codex ended with exit status 101. It said last: thread 'main' panicked at x.")
    assert "codex login" not in said + gone


def test_who_must_log_in_is_known_beforehand() -> None:
    assert parse_is_barred(raw({"account": None, "requiresOpenaiAuth": True}))
    assert not parse_is_barred(raw({"account": None, "requiresOpenaiAuth": False}))
    assert not parse_is_barred(raw({"account": {"type": "apiKey"}, "requiresOpenaiAuth": True}))


def test_a_command_is_put_to_the_person_as_it_would_run() -> None:
    wish = Wish(item_id="1", command="/bin/bash -lc 'rm -rf x'", cwd="/w/sub", reason="to clean")
    asked = parse_request(COMMAND, wish, None, Asker("/w"))
    assert asked == ApprovalRequest("shell", "(in /w/sub) rm -rf x", ("host",), "/w", "to clean")
    wants_network = Wish(command="curl x", cwd="/w", additional_permissions={"network": {"enabled": True}})
    assert parse_request(COMMAND, wants_network, None, Asker("/w")) == ApprovalRequest(
        "shell", "curl x", ("network",), "/w"
    )


def test_a_patch_is_put_to_the_person_with_every_file_it_writes() -> None:
    changes = [{"path": "/opt/x", "kind": {"type": "add"}, "diff": "hello\n"}]
    item = parse_item(raw({"type": "fileChange", "id": "1", "changes": changes}))
    asked = parse_request(PATCH, Wish(item_id="1"), item, Asker("/w"))
    assert asked == ApprovalRequest("patch", "add /opt/x\nhello", ("write:/opt/x",), "/w")


def test_a_form_to_fill_in_is_no_question_that_yes_or_no_answers() -> None:
    form = Wish(server_name="pk", requested_schema={"type": "object", "properties": {"name": {"type": "string"}}})
    assert not can_be_asked(ELICITATION, form)
    assert can_be_asked(ELICITATION, Wish(requested_schema={"type": "object", "properties": {}}))
    assert render_answer(ELICITATION, form, "allow") == {"action": "accept", "content": {}}
    assert render_answer(ELICITATION, form, "deny") == {"action": "decline"}
    assert render_answer(COMMAND, form, "allow") == {"decision": "accept"}


@pytest.mark.parametrize(("text", "seq"), [(client_id(17), 17), ("outrider-x", 0), ("17", 0), (None, 0), ("", 0)])
def test_an_input_is_known_again_by_its_number(text: str | None, seq: int) -> None:
    assert parse_client_id(text) == seq


def test_what_is_unknown_or_missing_in_a_message_does_no_harm() -> None:
    assert parse_told(Raw(b"null")).thread_id == ""
    told = parse_told(
        raw({"threadId": "t", "turn": {"id": "u", "status": "failed", "error": {"message": "m"}}, "x": 1})
    )
    assert (told.thread_id, told.turn.id, told.turn.error) == ("t", "u", Fault("m"))


def test_a_folder_is_marked_as_not_trusted_unless_the_person_decided_otherwise() -> None:
    assert trust("/w/a", ()) == {"projects": {"/w/a": {"trust_level": "untrusted"}}}
    assert trust("/w/a", {"/w"}) == {}
    assert trust("/w/a", {"/w/ab"}) == {"projects": {"/w/a": {"trust_level": "untrusted"}}}


@pytest.mark.behaviour("A10")
def test_only_the_time_that_codex_works_is_counted() -> None:
    watch = Watch(0, seconds=10, quiet=90)
    watch.owes(4)
    assert (watch.due(500), watch.is_waiting) == ("", True)
    watch.gave(500)
    assert (watch.due(505.9), watch.due(506)) == ("", "late")


@pytest.mark.behaviour("A11")
def test_silence_is_looked_into_only_after_a_tool_and_while_nothing_is_outstanding() -> None:
    watch = Watch(0, seconds=1000, quiet=5)
    assert watch.due(100) == ""
    watch.tool_began("a")
    watch.tool_began("b")
    watch.tool_ended("a", 100)
    assert watch.due(200) == ""
    watch.tool_ended("b", 200)
    assert (watch.due(204.9), watch.due(205)) == ("", "quiet")
    watch.probed(205)
    assert (watch.due(209), watch.due(210)) == ("", "quiet")
    watch.heard(211)
    assert watch.due(400) == ""
