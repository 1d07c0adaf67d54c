"""What ACP agents say and do, in our words; what they are told when a prompt begins."""

from typing import Any

import msgspec
import pytest
from msgspec import Raw

from outrider.core.approve import ApprovalRequest
from outrider.core.events import Begun, Bound, Ended, Entry, Input, Reply, Result, Resumed, Started
from outrider.core.parts import Call, Usage
from outrider.core.plan import fold
from outrider.core.prompt import Transcript, UserMessage
from outrider.runtimes.acp.deeds import (
    Wanted,
    changed,
    choose,
    deed_of,
    is_same,
    outcome_of,
    plan_of,
    request_of,
    text_of,
)
from outrider.runtimes.acp.faults import BACK, explain
from outrider.runtimes.acp.wire import AuthMethod, Initialized, Option, Prompted, ToolCall, Update, lenient
from outrider.runtimes.acp.words import Beginning, Known, beginning, is_cut_off, is_done, prompt_name
from outrider.runtimes.jsonrpc import ChildGone, NoAnswer, RpcError
from outrider.runtimes.outside.ledger import Deed, Outcome


def raw(value: Any) -> Raw:
    return Raw(msgspec.json.encode(value))


def _tool(one: dict[str, Any]) -> ToolCall:
    decoded = lenient(raw(one), ToolCall)
    assert decoded
    return decoded


def entries(*bodies: Any) -> list[Entry]:
    return [Entry(seq, 0, body) for seq, body in enumerate(bodies, 1)]


def test_a_call_grows_with_what_is_told_of_it() -> None:
    call = changed(None, _tool({"toolCallId": "c", "title": "Terminal", "kind": "execute", "rawInput": {}}))
    assert not call.is_clear
    call = changed(call, _tool({"toolCallId": "c", "title": None, "rawInput": {"command": "ls"}}))
    assert call.is_clear
    call = changed(call, _tool({"toolCallId": "c", "status": "failed", "rawInput": None, "rawOutput": "no such file"}))
    assert deed_of(call, "s/p") == Deed("s/p/c", "shell", {"command": "ls"})
    assert outcome_of(call) == Outcome("no such file", failed=True, details="Terminal")


@pytest.mark.parametrize(
    ("told", "text"),
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
def test_what_came_of_a_call_is_its_content_or_else_its_output(told: dict[str, Any], text: str) -> None:
    call = changed(None, _tool({"toolCallId": "c", "status": "completed", **told}))
    assert outcome_of(call).text == text


def test_what_a_person_is_asked_shows_what_would_be_done() -> None:
    run = changed(None, _tool({"toolCallId": "c", "kind": "execute", "rawInput": {"command": ["rm", "a b"]}}))
    assert request_of(run, "/w") == ApprovalRequest("shell", "rm 'a b'", ("host",), "/w")
    told = changed(
        None, _tool({"toolCallId": "c", "kind": "execute", "rawInput": {"command": "rm x", "description": "tidy"}})
    )
    assert request_of(told, "/w") == ApprovalRequest("shell", "rm x", ("host",), "/w", "tidy")
    fetch = changed(None, _tool({"toolCallId": "c", "title": "Fetch", "rawInput": {"url": "http://a"}}))
    assert request_of(fetch, "/w").command == 'Fetch\n{"url": "http://a"}'
    edit = {"toolCallId": "c", "title": "Edit a", "kind": "edit"}
    change = [{"type": "diff", "path": "a", "oldText": "x", "newText": "y"}]
    assert request_of(changed(None, _tool({**edit, "content": change})), "/w").command == (
        "Edit a\n--- a\n+++ a\n@@ -1 +1 @@\n-x\n+y"
    )
    assert request_of(Wanted("c"), "/w").command == "something it does not name"


ALL = tuple(Option(kind, kind) for kind in ("allow_always", "reject_always", "allow_once", "reject_once", "new_kind"))


@pytest.mark.parametrize(("is_allowed", "kind"), [(True, "allow_once"), (False, "reject_once")])
def test_an_option_is_chosen_by_its_kind(is_allowed: bool, kind: str) -> None:
    assert choose(ALL, is_allowed=is_allowed) == Option(kind, kind)


def test_no_option_is_better_than_one_that_means_more() -> None:
    assert choose(ALL[:2], is_allowed=True) is None
    assert choose((), is_allowed=False) is None


def test_two_calls_are_the_same_when_their_command_is() -> None:
    assert is_same({"command": "ls", "description": "a"}, {"command": "ls", "description": "b"})
    assert not is_same({"path": "a"}, {"path": "b"})


def test_content_that_is_no_text_is_named() -> None:
    blocks = [{"type": "text", "text": "hi"}, {"type": "image", "data": "x"}, {"type": "resource_link", "uri": "u"}, 5]
    assert [text_of(raw(block)) for block in blocks] == ["hi", "[image]", "[u]", ""]


def test_a_plan_is_one_line() -> None:
    plan = [{"content": "look", "status": "completed"}, {"content": "mend", "status": "in_progress"}]
    assert plan_of(raw(plan)) == "plan: 1 of 2 done; now: mend"
    assert plan_of(raw([])) == plan_of(raw("nonsense")) == ""


def test_what_is_not_known_is_left_out() -> None:
    assert lenient(raw({"sessionUpdate": "agent_message_chunk", "content": {"type": "text"}, "new": 1}), Update)
    assert lenient(raw({"sessionUpdate": 5}), Update) is None
    told = lenient(raw({"protocolVersion": 1, "agentCapabilities": None, "authMethods": None}), Initialized)
    assert told
    assert (told.can_load, told.can_resume, told.can_see) == (False, False, False)
    assert Prompted("end_turn", raw({"inputTokens": 5, "outputTokens": None, "cachedReadTokens": 2})).tokens() == Usage(
        7, 0, 2
    )
    assert Prompted("end_turn", raw("nonsense")).tokens() == Usage()


METHODS = (AuthMethod("a", "Log in", "run `agent login`"), AuthMethod("key"))


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            RpcError(-32000, "Nope"),
            f"it wants you to log in: Log in (run `agent login`) or key. Then say it again; {BACK}",
        ),
        (RpcError(-32603, "Internal error", raw("bad")), f"it: Internal error (-32603): bad; {BACK}"),
        (RpcError(-32603, "Internal error"), f"it: Internal error (-32603); {BACK}"),
        (NoAnswer("it did not answer"), f"it did not answer; {BACK}"),
        (ChildGone("it", 1, 0, "\nTraceback: key [x]\n"), f"it ended with exit status 1: Traceback: key [x]; {BACK}"),
    ],
)
def test_errors_are_told_with_what_to_do_about_them(error: Any, words: str) -> None:
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
def test_the_journal_tells_whether_a_prompt_was_cut_off(more: tuple[Any, ...], is_cut: bool, done: bool) -> None:
    state = fold(entries(*SENT, *more))
    assert (is_cut_off(state, state.threads["acp"].turn), is_done(state)) == (is_cut, done)


def test_a_prompt_begins_with_what_the_agent_does_not_know() -> None:
    journal = entries(Input("where?"), Started(), Reply("Rome", 1), Ended("done", 1), Input("go on"), Started("acp"))
    transcript = Transcript()
    transcript.add(journal)
    state = fold(journal)
    begins = beginning(state, transcript, transcript.before(state.head), None)
    assert (begins.inputs, begins.saw, prompt_name(state)) == ((UserMessage("go on"),), 5, "prompt-5.6")
    assert "Person: where?\nAgent: Rome\n" in begins.before


def test_a_prompt_after_a_cut_says_so_and_repeats_the_request() -> None:
    journal = entries(*SENT, Reply("", 1, (CALL,)), Begun("x1"), Resumed(), Result("x1", "who knows", failed=True))
    transcript = Transcript()
    transcript.add(journal)
    begins = beginning(fold(journal), transcript, (), [Known(CALL, "it may have happened")])
    assert begins == Beginning((UserMessage("go"),), 1, begins.before)
    assert begins.before.splitlines()[1] == '- shell {"command":"ls"}: it may have happened]'
