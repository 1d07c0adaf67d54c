"""Tests of script files and of the choice of the line that answers a request."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.errors import Refused
from outrider.core.events import Result
from outrider.core.prompt import AssistantMessage, Message, Prompt, ToolMessage, UserMessage
from outrider.core.types import Call, Usage
from outrider.testing.scripted_model import ScriptedCall, ScriptedReply, says
from outrider.testing.scripted_server.app import find_prompt_error
from outrider.testing.scripted_server.script import (
    Cut,
    Empty,
    ErrorStatus,
    Garbage,
    Overflow,
    Script,
    ScriptProgress,
    ScriptRule,
    Stall,
    parse_script,
    script,
)


def prompt(*messages: Message) -> Prompt:
    return Prompt("", list(messages))


def test_every_field_of_a_script_file_is_parsed() -> None:
    source = """{
      "replies": ["hi", {"text": "t", "calls": [{"tool": "read", "args": {"path": "a"}}, {"tool": "x", "raw": "{"},
                         {"tool": "apply_patch", "input": "***"}], "reasoning": "r", "delay": 0.5, "chunk": 4,
                         "usage": {"input": 9, "output": 3}, "cut": "length"},
                  [{"status": 429, "retry_after": 1, "message": "slow"}, {"stall": "stream"}, {"cut": 120},
                   {"cut": true}, {"garbage": true}, {"empty": true}, {"overflow": true}, "at last"]],
      "rules": [{"when": "weather", "reply": "rain"}, {"when": "two", "replies": ["a", "b"]}],
      "faults": [{"status": 500}]
    }"""
    calls = (
        ScriptedCall("read", {"path": "a"}),
        ScriptedCall("x", raw="{"),
        ScriptedCall("apply_patch", raw="***", custom=True),
    )
    assert parse_script(source) == Script(
        replies=(
            (ScriptedReply("hi"),),
            (ScriptedReply("t", calls, "r", Usage(9, 3), "length", 0.5, 4),),
            (
                ErrorStatus(429, "slow", 1),
                Stall("stream"),
                Cut(120),
                Cut(),
                Garbage(),
                Empty(),
                Overflow(),
                ScriptedReply("at last"),
            ),
        ),
        rules=(
            ScriptRule("weather", ((ScriptedReply("rain"),),)),
            ScriptRule("two", ((ScriptedReply("a"),), (ScriptedReply("b"),))),
        ),
        faults=(ErrorStatus(500),),
    )


def test_a_list_alone_is_a_script_of_replies() -> None:
    assert parse_script('["a", "b"]') == script("a", "b")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("nonsense", "in the script: "),
        ("[[]]", "empty list"),
        ('[{"txt": "a"}]', "txt"),
        ('[{"text": "a", "status": 500}]', "either a reply or one fault"),
        ('[{"status": 200}]', "not an HTTP error status"),
        ('{"rules": [{"when": "(", "reply": "a"}]}', "not a regular expression"),
        ('{"rules": [{"when": "a"}]}', "no reply"),
        ('{"faults": [{"text": "a"}]}', "only faults"),
    ],
)
def test_a_mistake_in_a_script_is_named(source: str, message: str) -> None:
    with pytest.raises(Refused, match="in the script: ") as refused:
        parse_script(source)
    assert message in str(refused.value)


@given(st.text())
def test_any_text_is_parsed_or_refused(source: str) -> None:
    with suppress(Refused):
        parse_script(source)


def test_the_lines_of_a_step_are_used_once_each_and_the_last_one_is_repeated() -> None:
    progress = ScriptProgress(script([ErrorStatus(429), Cut(5), says("hi")], [ErrorStatus(401)]))
    first, second = prompt(UserMessage("x")), prompt(UserMessage("x"), AssistantMessage("hi"))
    assert [progress.choose(first).line for _ in range(4)] == [
        ErrorStatus(429),
        Cut(5),
        ScriptedReply("hi"),
        ScriptedReply("hi"),
    ]
    assert [progress.choose(second).line for _ in range(2)] == [ErrorStatus(401), ErrorStatus(401)]


def test_a_cut_stream_begins_with_the_reply_of_its_step() -> None:
    assert ScriptProgress(script([Cut(5), says("hi")])).choose(prompt(UserMessage("x"))).reply == ScriptedReply("hi")


def test_rules_come_before_replies_and_count_from_the_message_they_match() -> None:
    rule = ScriptRule("weather", ((ScriptedReply("", (ScriptedCall("look"),)),), (ScriptedReply("rain"),)))
    progress = ScriptProgress(Script(replies=((ScriptedReply("plain"),),), rules=(rule,)))
    looked = AssistantMessage("", (Call("c", "look", {}),)), ToolMessage((Result("c", "wet"),))
    asked = AssistantMessage("before"), UserMessage("the Weather?")
    assert progress.choose(prompt(UserMessage("hi"))).line == ScriptedReply("plain")
    assert progress.choose(prompt(UserMessage("hi"), *asked)).line == ScriptedReply("", (ScriptedCall("look"),))
    assert progress.choose(prompt(UserMessage("hi"), *asked, *looked)).line == ScriptedReply("rain")
    assert progress.choose(prompt(UserMessage("hi"), *asked, *looked, AssistantMessage("rain"))).line == ScriptedReply(
        "(script ended)"
    )


def test_the_faults_of_a_script_answer_the_first_requests() -> None:
    progress = ScriptProgress(Script(replies=((ScriptedReply("hi"),),), faults=(ErrorStatus(500), Garbage())))
    assert [progress.choose(prompt(UserMessage("x"))).line for _ in range(3)] == [
        ErrorStatus(500),
        Garbage(),
        ScriptedReply("hi"),
    ]


CALLED = AssistantMessage("", (Call("a", "t", {}), Call("b", "t", {})))
ANSWERED = ToolMessage((Result("a", ""), Result("b", "")))


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ((), "at least one message is required"),
        ((UserMessage("x"), CALLED, ANSWERED), None),
        ((UserMessage("x"), CALLED), "the call with the id a has no result"),
        (
            (UserMessage("x"), CALLED, ToolMessage((Result("a", ""),)), UserMessage("y")),
            "the call with the id b is not followed by its result",
        ),
        (
            (UserMessage("x"), CALLED, UserMessage("y"), ANSWERED),
            "the call with the id a is not followed by its result",
        ),
        ((UserMessage("x"), ToolMessage((Result("z", ""),))), "there is no call with the id z"),
    ],
)
def test_a_prompt_that_providers_refuse_is_refused(messages: tuple[Message, ...], expected: str | None) -> None:
    assert find_prompt_error(prompt(*messages), in_order=True) == expected


def test_an_api_without_that_rule_accepts_later_results() -> None:
    assert find_prompt_error(prompt(UserMessage("x"), CALLED, UserMessage("y"), ANSWERED), in_order=False) is None
