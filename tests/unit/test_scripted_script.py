"""What a script file may say, and which of its lines answers a request."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.errors import Refused
from outrider.core.events import Result
from outrider.core.parts import Call, Usage
from outrider.core.prompt import AssistantMessage, Message, Prompt, ToolMessage, UserMessage
from outrider.models.script_server import (
    Cut,
    Empty,
    Garbage,
    Overflow,
    Rule,
    Script,
    Stall,
    Status,
    parse_script,
    script,
)
from outrider.models.script_server.script import Progress
from outrider.models.script_server.validity import complaint
from outrider.models.scripted import Says, Wanted, says


def prompt(*messages: Message) -> Prompt:
    return Prompt("", list(messages))


def test_a_script_file_is_read_whole() -> None:
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
        Wanted("read", {"path": "a"}),
        Wanted("x", raw="{"),
        Wanted("apply_patch", raw="***", custom=True),
    )
    assert parse_script(source) == Script(
        replies=(
            (Says("hi"),),
            (Says("t", calls, "r", Usage(9, 3), "length", 0.5, 4),),
            (
                Status(429, "slow", 1),
                Stall("stream"),
                Cut(120),
                Cut(),
                Garbage(),
                Empty(),
                Overflow(),
                Says("at last"),
            ),
        ),
        rules=(Rule("weather", ((Says("rain"),),)), Rule("two", ((Says("a"),), (Says("b"),)))),
        faults=(Status(500),),
    )


def test_a_list_alone_is_a_script_of_replies() -> None:
    assert parse_script('["a", "b"]') == script("a", "b")


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("nonsense", "in the script: "),
        ("[[]]", "empty list"),
        ('[{"txt": "a"}]', "txt"),
        ('[{"text": "a", "status": 500}]', "either a reply or one fault"),
        ('[{"status": 200}]', "no HTTP error"),
        ('{"rules": [{"when": "(", "reply": "a"}]}', "no regular expression"),
        ('{"rules": [{"when": "a"}]}', "no reply"),
        ('{"faults": [{"text": "a"}]}', "faults only"),
    ],
)
def test_what_is_wrong_in_a_script_is_said(source: str, complaint: str) -> None:
    with pytest.raises(Refused, match="in the script: ") as refused:
        parse_script(source)
    assert complaint in str(refused.value)


@given(st.text())
def test_no_text_makes_the_script_reader_fail_otherwise_than_by_refusing(source: str) -> None:
    with suppress(Refused):
        parse_script(source)


def test_faults_are_met_once_each_and_the_last_line_of_a_place_stays() -> None:
    progress = Progress(script([Status(429), Cut(5), says("hi")], [Status(401)]))
    first, second = prompt(UserMessage("x")), prompt(UserMessage("x"), AssistantMessage("hi"))
    assert [progress.choose(first).line for _ in range(4)] == [Status(429), Cut(5), Says("hi"), Says("hi")]
    assert [progress.choose(second).line for _ in range(2)] == [Status(401), Status(401)]


def test_what_a_cut_stream_is_the_beginning_of_is_the_reply_of_its_place() -> None:
    assert Progress(script([Cut(5), says("hi")])).choose(prompt(UserMessage("x"))).says == Says("hi")


def test_rules_go_before_replies_and_count_the_steps_since_the_words_they_match() -> None:
    rule = Rule("weather", ((Says("", (Wanted("look"),)),), (Says("rain"),)))
    progress = Progress(Script(replies=((Says("plain"),),), rules=(rule,)))
    looked = AssistantMessage("", (Call("c", "look", {}),)), ToolMessage((Result("c", "wet"),))
    asked = AssistantMessage("before"), UserMessage("the Weather?")
    assert progress.choose(prompt(UserMessage("hi"))).line == Says("plain")
    assert progress.choose(prompt(UserMessage("hi"), *asked)).line == Says("", (Wanted("look"),))
    assert progress.choose(prompt(UserMessage("hi"), *asked, *looked)).line == Says("rain")
    assert progress.choose(prompt(UserMessage("hi"), *asked, *looked, AssistantMessage("rain"))).line == Says(
        "(script ended)"
    )


def test_faults_of_the_whole_script_are_met_by_the_first_requests() -> None:
    progress = Progress(Script(replies=((Says("hi"),),), faults=(Status(500), Garbage())))
    assert [progress.choose(prompt(UserMessage("x"))).line for _ in range(3)] == [Status(500), Garbage(), Says("hi")]


CALLED = AssistantMessage("", (Call("a", "t", {}), Call("b", "t", {})))
ANSWERED = ToolMessage((Result("a", ""), Result("b", "")))


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ((), "at least one message is required"),
        ((UserMessage("x"), CALLED, ANSWERED), None),
        ((UserMessage("x"), CALLED), "no result was given for the call with the id a"),
        (
            (UserMessage("x"), CALLED, ToolMessage((Result("a", ""),)), UserMessage("y")),
            "no result follows the call with the id b",
        ),
        ((UserMessage("x"), CALLED, UserMessage("y"), ANSWERED), "no result follows the call with the id a"),
        ((UserMessage("x"), ToolMessage((Result("z", ""),))), "no call was made with the id z"),
    ],
)
def test_what_providers_refuse_is_refused(messages: tuple[Message, ...], expected: str | None) -> None:
    assert complaint(prompt(*messages), in_order=True) == expected


def test_an_api_without_that_rule_takes_results_later() -> None:
    assert complaint(prompt(UserMessage("x"), CALLED, UserMessage("y"), ANSWERED), in_order=False) is None
