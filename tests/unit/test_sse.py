"""Tests of the parser for server-sent events."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.system.sse import SseEvent, SseParser, SseTooLong


def events(*chunks: bytes) -> list[SseEvent]:
    stream = SseParser()
    found = [event for chunk in chunks for event in stream.feed(chunk)]
    return found + stream.close()


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_events_are_separated_with_any_line_ending(end: bytes) -> None:
    lines = [
        b"\xef\xbb\xbf: hello",
        b"event: ping",
        b"data: 1",
        b"",
        b"data:2",
        b"data:  3",
        b"id: 9",
        b"",
        b"data",
        b"",
    ]
    assert events(b"".join(line + end for line in lines)) == [
        SseEvent("ping", b"1"),
        SseEvent("", b"2\n 3"),
        SseEvent("", b""),
    ]


def test_an_event_without_its_blank_line_is_dropped() -> None:
    assert events(b"data: 1\n\ndata: 2\n") == [SseEvent("", b"1")]


def test_content_that_is_not_an_event_stream_is_kept_for_the_error() -> None:
    stream = SseParser()
    assert stream.feed(b'{"error": "x"}') + stream.close() == []
    assert stream.stray == b'{"error": "x"}\n'


def test_an_endless_line_is_refused() -> None:
    stream = SseParser(max_length=100)
    stream.feed(b"data: " + b"1" * 94)
    with pytest.raises(SseTooLong):
        stream.feed(b"1")
    endless = SseParser(max_length=100)
    with pytest.raises(SseTooLong):
        endless.feed(b"data: 12345\n" * 200)


@given(
    st.lists(st.tuples(st.sampled_from(["", "ping", "délta"]), st.text(alphabet="ab é🌍\t:", min_size=1)), max_size=6),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.lists(st.integers(1, 9), min_size=1),
)
def test_any_chunks_give_the_same_events(sent: list[tuple[str, str]], end: str, sizes: list[int]) -> None:
    text = "".join((f"event: {name}{end}" if name else "") + f"data: {data}{end}: c{end}{end}" for name, data in sent)
    content = text.encode()
    chunks: list[bytes] = []
    at = turn = 0
    while at < len(content):
        size = sizes[turn % len(sizes)]
        chunks.append(content[at : at + size])
        at, turn = at + size, turn + 1
    assert events(*chunks) == [SseEvent(name, data.encode()) for name, data in sent]


@given(st.lists(st.binary(max_size=40), max_size=20))
def test_no_bytes_break_the_parser(chunks: list[bytes]) -> None:
    assert events(*chunks) == events(b"".join(chunks))
