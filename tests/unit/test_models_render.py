"""Property tests of the renderers: any journal renders to a valid request, and prompts only grow."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.events import Entry
from outrider.core.prompt import AssistantMessage, Prompt, UserMessage, transcript
from outrider.models.http_model import ReasoningReplay
from tests.support.requests import CHECKS, TOOLS, Json, journals, render, wire_of


@pytest.mark.parametrize("name", list(CHECKS))
@given(journal=journals(), cut=st.integers(0, 30), tail=st.sampled_from(["", "Two tasks run."]))
def test_any_journal_renders_to_a_valid_request(name: str, journal: Sequence[Entry], cut: int, tail: str) -> None:
    prompt = Prompt("You are Outrider.", transcript(journal[:cut]), TOOLS, 7, tail)
    for past in ReasoningReplay:
        CHECKS[name](render(name, prompt, past))


@pytest.mark.parametrize("name", list(CHECKS))
@given(journal=journals())
def test_a_cached_rendering_equals_a_fresh_one(name: str, journal: Sequence[Entry]) -> None:
    caching = wire_of(name)
    messages = transcript(journal)
    for length in range(len(messages) + 1):
        prompt = Prompt("s", messages[:length], TOOLS, 7)
        assert caching.render(prompt, ReasoningReplay.FULL) == wire_of(name).render(prompt, ReasoningReplay.FULL)


def content_of(name: str, request: Json) -> str:
    """The content of all messages in order, without cache marks and without message boundaries."""
    match name:
        case "openai-chat":
            content: Any = [
                [part if isinstance(part, dict) else {"type": "text", "text": part}]
                for message in request["messages"]
                for part in (message["content"] if isinstance(message["content"], list) else [message["content"]])
            ]
        case "openai-responses":
            content = request["input"]
        case _:
            content = [
                {key: value for key, value in block.items() if key != "cache_control"}
                for message in request["messages"]
                for block in message["content"]
            ]
    return json.dumps(content)


@pytest.mark.parametrize("name", list(CHECKS))
@given(journal=journals())
def test_each_prompt_extends_the_previous_one(name: str, journal: Sequence[Entry]) -> None:
    wire = wire_of(name)
    messages = transcript(journal)
    before = ""
    for length, message in enumerate(messages, 1):
        if isinstance(message, AssistantMessage) or (isinstance(message, UserMessage) and not message.text.strip()):
            continue
        content = content_of(
            name, json.loads(wire.render(Prompt("s", messages[:length], TOOLS, 7), ReasoningReplay.FULL))
        )
        assert content.startswith(before)
        # The end of the last text may be followed by more text; everything before it is fixed.
        before = content.rstrip(']}"')


# --- each wire by example ---------------------------------------------------------------------------------------
