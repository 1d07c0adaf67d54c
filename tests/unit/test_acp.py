"""The pure parts of the ACP runtime: tool calls, errors and the contents of prompts."""

from typing import Any

import msgspec
import pytest
from msgspec import Raw

from outrider.core.approvals import ApprovalRequest, RequestDetail
from outrider.core.events import Begun, Bound, Ended, Entry, Input, Reply, Result, Resumed, Started
from outrider.core.plan import fold
from outrider.core.prompt import Transcript, UserMessage
from outrider.core.types import Call, Usage
from outrider.runtimes.acp.errors import USE_NATIVE_HINT, explain
from outrider.runtimes.acp.prompt import (
    InterruptedCall,
    PromptStart,
    build_prompt,
    is_done,
    is_interrupted,
    prompt_name,
)
from outrider.runtimes.acp.protocol import (
    AuthMethod,
    InitializeResponse,
    PermissionOption,
    SessionUpdate,
    ToolCallUpdate,
    parse_or_none,
    parse_prompt_response,
    parse_update,
)
from outrider.runtimes.acp.tool_calls import (
    AcpToolCall,
    apply_update,
    approval_request_of,
    choose_option,
    content_text,
    external_call_of,
    outcome_of,
    render_plan,
)
from outrider.runtimes.external.history import History, render_history
from outrider.runtimes.external.recorder import CallOutcome, ExternalCall
from outrider.runtimes.jsonrpc.errors import ProcessExited, RequestTimeout, RpcError


def raw(value: Any) -> Raw:
    return Raw(msgspec.json.encode(value))


def _tool(one: dict[str, Any]) -> ToolCallUpdate:
    decoded = parse_or_none(raw(one), ToolCallUpdate)
    assert decoded
    return decoded


def entries(*bodies: Any) -> list[Entry]:
    return [Entry(seq, 0, body) for seq, body in enumerate(bodies, 1)]


def test_updates_of_a_call_are_merged() -> None:
    call = apply_update(None, _tool({"toolCallId": "c", "title": "Terminal", "kind": "execute", "rawInput": {}}))
    assert not call.is_specified
    call = apply_update(call, _tool({"toolCallId": "c", "title": None, "rawInput": {"command": "ls"}}))
    assert call.is_specified
    call = apply_update(
        call, _tool({"toolCallId": "c", "status": "failed", "rawInput": None, "rawOutput": "no such file"})
    )
    assert external_call_of(call, "s/p") == ExternalCall("s/p/c", "shell", {"command": "ls"})
    assert outcome_of(call) == CallOutcome("no such file", failed=True, details="Terminal")


@pytest.mark.parametrize(
    ("update", "text"),
    [
        ({"content": [{"type": "content", "content": {"type": "text", "text": "hi"}}]}, "hi"),
        ({"content": [{"type": "terminal", "terminalId": "t"}]}, "done"),
        ({"content": "nonsense", "rawOutput": {"n": 1}}, '{"n": 1}'),
        (
            {"content": [{"type": "diff", "path": "a", "oldText": None, "newText": "x"}]},
            "--- a\n+++ a\n@@ -0,0 +1 @@\n+x",
        ),
        ({}, "done"),
    ],
)
def test_the_outcome_of_a_call_is_its_content_or_else_its_output(update: dict[str, Any], text: str) -> None:
    call = apply_update(None, _tool({"toolCallId": "c", "status": "completed", **update}))
    assert outcome_of(call).text == text


def test_a_person_is_shown_what_a_call_would_do() -> None:
    run = apply_update(None, _tool({"toolCallId": "c", "kind": "execute", "rawInput": {"command": ["rm", "a b"]}}))
    assert approval_request_of(run, "/w") == ApprovalRequest("shell", "rm 'a b'", ("host",), "/w")
    update = apply_update(
        None, _tool({"toolCallId": "c", "kind": "execute", "rawInput": {"command": "rm x", "description": "tidy"}})
    )
    assert approval_request_of(update, "/w") == ApprovalRequest("shell", "rm x", ("host",), "/w", "tidy")
    fetch = apply_update(None, _tool({"toolCallId": "c", "title": "Fetch", "rawInput": {"url": "http://a"}}))
    assert approval_request_of(fetch, "/w") == ApprovalRequest(
        "tool", "Fetch", ("host",), "/w", details=(RequestDetail("url", "http://a"),)
    )
    secret = {"command": "make", "cwd": "/etc", "env": {"A": "1"}, "timeout": 5}
    hidden = apply_update(None, _tool({"toolCallId": "c", "kind": "execute", "rawInput": secret}))
    assert approval_request_of(hidden, "/w").details == (
        RequestDetail("cwd", "/etc"),
        RequestDetail("env", '{"A":"1"}'),
    )
    edit = {"toolCallId": "c", "title": "Edit a", "kind": "edit"}
    change = [{"type": "diff", "path": "a", "oldText": "x", "newText": "y"}]
    assert approval_request_of(apply_update(None, _tool({**edit, "content": change})), "/w") == ApprovalRequest(
        "edit",
        "Edit a",
        ("host",),
        "/w",
        details=(RequestDetail("Shown by the agent", "--- a\n+++ a\n@@ -1 +1 @@\n-x\n+y"),),
    )
    assert approval_request_of(AcpToolCall("c"), "/w").command == "(the agent did not say what)"


ALL = tuple(
    PermissionOption(kind, kind) for kind in ("allow_always", "reject_always", "allow_once", "reject_once", "new_kind")
)


@pytest.mark.parametrize(("is_allowed", "kind"), [(True, "allow_once"), (False, "reject_once")])
def test_an_option_is_chosen_by_its_kind(is_allowed: bool, kind: str) -> None:
    assert choose_option(ALL, is_allowed=is_allowed) == PermissionOption(kind, kind)


def test_an_option_that_means_more_is_not_chosen() -> None:
    assert choose_option(ALL[:2], is_allowed=True) is None
    assert choose_option((), is_allowed=False) is None


def test_content_other_than_text_is_shown_by_its_name() -> None:
    blocks = [{"type": "text", "text": "hi"}, {"type": "image", "data": "x"}, {"type": "resource_link", "uri": "u"}, 5]
    assert [content_text(raw(block)) for block in blocks] == ["hi", "[image]", "[u]", ""]


def test_a_plan_is_one_line() -> None:
    plan = [{"content": "look", "status": "completed"}, {"content": "mend", "status": "in_progress"}]
    assert render_plan(raw(plan)) == "plan: 1 of 2 done; now: mend"
    assert render_plan(raw([])) == render_plan(raw("nonsense")) == ""


def test_unknown_and_malformed_fields_are_ignored() -> None:
    assert parse_or_none(
        raw({"sessionUpdate": "agent_message_chunk", "content": {"type": "text"}, "new": 1}), SessionUpdate
    )
    assert parse_or_none(raw([5]), SessionUpdate) is None
    assert parse_update(raw({"sessionUpdate": 5, "title": "t"})) == SessionUpdate(title="t", unread=("sessionUpdate",))
    update = parse_or_none(
        raw({"protocolVersion": 1, "agentCapabilities": None, "authMethods": None}), InitializeResponse
    )
    assert update
    assert (update.can_load, update.can_resume, update.accepts_images) == (False, False, False)
    usage = {"inputTokens": 5, "outputTokens": None, "cachedReadTokens": 2, "thoughtTokens": "many"}
    assert parse_prompt_response(raw({"stopReason": "end_turn", "usage": usage})).tokens() == Usage(7, 0, 2)
    assert parse_prompt_response(raw({"stopReason": "end_turn", "usage": "nonsense"})).tokens() == Usage()


def test_the_tokens_that_gemini_reports_are_counted() -> None:
    quota = {"token_count": {"input_tokens": 11, "output_tokens": 3}, "model_usage": [{"model": "m"}]}
    response = parse_prompt_response(raw({"stopReason": "end_turn", "_meta": {"quota": quota}}))
    assert response.tokens() == Usage(11, 3)


METHODS = (AuthMethod("a", "Log in", "run `agent login`"), AuthMethod("key"))


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            RpcError(-32000, "Nope"),
            "it requires a login: Log in (run `agent login`) or key. Then send your message again "
            f"(it said: Nope (-32000)); {USE_NATIVE_HINT}",
        ),
        (RpcError(-32603, "Internal error", raw("bad")), f"it: Internal error (-32603): bad; {USE_NATIVE_HINT}"),
        (RpcError(-32603, "Internal error"), f"it: Internal error (-32603); {USE_NATIVE_HINT}"),
        (RequestTimeout("it did not answer"), f"it did not answer; {USE_NATIVE_HINT}"),
        (
            ProcessExited("it", 1, 0, "\nTraceback: key [x]\n"),
            f"it ended with exit status 1: Traceback: key [x]; {USE_NATIVE_HINT}",
        ),
    ],
)
def test_errors_are_explained_with_a_hint(error: Any, words: str) -> None:
    assert str(explain(error, "it", METHODS, str)) == words


CALL = Call("x1", "shell", {"command": "ls"})
SENT = (Input("go"), Started("acp"), Bound("acp", "s", "prompt-1.2", 1))


@pytest.mark.parametrize(
    ("more", "is_cut", "done"),
    [
        ((Resumed(),), True, False),
        ((Reply("", 1, (CALL,)), Begun("x1"), Resumed()), True, False),
        ((Reply("", 1, (CALL,)), Begun("x1"), Result("x1", "ok"), Resumed()), True, False),
        ((Reply("I look", 1), Resumed()), True, False),
        ((Bound("acp", "s", saw=1), Reply("done", 1), Resumed()), False, True),
        ((Bound("acp", "s", saw=1), Reply("done", 1), Input("more")), False, False),
        ((Ended("interrupted", 3), Input("more"), Started("acp")), False, False),
    ],
)
def test_the_journal_shows_whether_a_prompt_was_interrupted(more: tuple[Any, ...], is_cut: bool, done: bool) -> None:
    state = fold(entries(*SENT, *more))
    assert (is_interrupted(state, state.threads["acp"].turn), is_done(state)) == (is_cut, done)


def test_a_prompt_begins_with_the_history_that_the_agent_has_not_seen() -> None:
    journal = entries(Input("where?"), Started(), Reply("Rome", 1), Ended("done", 1), Input("go on"), Started("acp"))
    transcript = Transcript()
    transcript.add(journal)
    state = fold(journal)
    begins = build_prompt(state, transcript, render_history(transcript.before(state.head), None), None)
    assert (begins.inputs, begins.saw, prompt_name(state)) == ((UserMessage("go on"),), 5, "prompt-5.6")
    assert "Person: where?\nAgent: Rome\n" in begins.preamble


def test_a_prompt_after_an_interruption_says_so_and_repeats_the_request() -> None:
    journal = entries(*SENT, Reply("", 1, (CALL,)), Begun("x1"), Resumed(), Result("x1", "who knows", failed=True))
    transcript = Transcript()
    transcript.add(journal)
    begins = build_prompt(fold(journal), transcript, History(), [InterruptedCall(CALL, "it may have happened")])
    assert begins == PromptStart((UserMessage("go"),), 1, begins.preamble)
    assert begins.preamble.splitlines()[1] == '- shell {"command":"ls"}: it may have happened]'
