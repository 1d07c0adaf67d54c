"""Arguments of a call that came only with its result: every reader of the journal shows them."""

import msgspec

from outrider.cli.chat.display import ToolLine
from outrider.cli.chat.session_view import ChatSessionView
from outrider.cli.render import markdown_page, transcript_lines
from outrider.core.events import Begun, Ended, Entry, Input, Reply, Result, Started, render_entry
from outrider.core.prompt import AssistantMessage, ToolMessage, UserMessage, transcript
from outrider.core.store_port import Session
from outrider.core.types import Call
from outrider.runtimes.external.history import render_history

_LATE = Result("x1", "3 plums", args={"query": "plums"})
_ENTRIES = [
    Entry(seq, 0, body)
    for seq, body in enumerate(
        (
            Input("go"),
            Started("codex"),
            Reply("", 1, (Call("x1", "web_search", {"query": ""}),)),
            Begun("x1"),
            _LATE,
            Reply("done", 1),
            Ended("done", 1),
        ),
        1,
    )
]
_SESSION = Session("s", "p", "s", "/w", "", 0, 0, 0, is_open=False, has_work=False)


def test_a_prompt_has_them() -> None:
    assert transcript(_ENTRIES) == [
        UserMessage("go"),
        AssistantMessage("", (Call("x1", "web_search", {"query": "plums"}),)),
        ToolMessage((_LATE,)),
        AssistantMessage("done"),
    ]


def test_the_history_for_another_program_has_them() -> None:
    assert 'Agent called web_search: {"query":"plums"}' in render_history(transcript(_ENTRIES), None).text


def test_a_transcript_and_a_page_of_the_session_have_them() -> None:
    lines = [line.split("  ", 1)[-1].strip() for line in transcript_lines(_SESSION, _ENTRIES)]
    assert "→ web_search query='plums'" in lines
    assert "✓ web_search query='plums'" in lines
    assert "- `web_search query='plums'`" in markdown_page(_SESSION, _ENTRIES)


def test_the_chat_shows_them() -> None:
    view = ChatSessionView()
    shown = [item for entry in _ENTRIES for item in view.apply(entry)]
    assert [item.call for item in shown if isinstance(item, ToolLine)] == ["web_search plums"]


def test_the_api_has_them_and_older_results_are_read_as_before() -> None:
    assert render_entry(_ENTRIES[4])["args"] == {"query": "plums"}
    assert "args" not in render_entry(Entry(1, 0, Result("x1", "3 plums")))
    old = b'{"type":"result","call":"x1","text":"3 plums"}'
    assert msgspec.json.decode(old, type=Result) == Result("x1", "3 plums")
