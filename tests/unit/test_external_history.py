"""The history for an external program: bounded, and it says what it leaves out."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.errors import Refused
from outrider.core.events import Result
from outrider.core.prompt import AssistantMessage, Message, ToolMessage, UserMessage
from outrider.core.types import Call, Image
from outrider.runtimes.external.history import MAX_HISTORY, MAX_IMAGE_BYTES, MAX_IMAGES, History, render_history
from outrider.runtimes.external.images import ImageContent

_SIZES = {"large": MAX_IMAGE_BYTES, "small": 10, "half": MAX_IMAGE_BYTES // 2}


def load(image: Image) -> bytes:
    if image.blob not in _SIZES:
        raise Refused("there is no such blob")
    return image.blob[:1].encode() * _SIZES[image.blob]


def image(blob: str) -> Image:
    return Image(blob, "image/png")


def message_with(*blobs: str) -> UserMessage:
    return UserMessage("look", images=tuple(image(blob) for blob in blobs))


def lines(history: History) -> list[str]:
    """Its lines between head and foot."""
    return history.text.split("\n")[1:-1]


def test_nothing_is_an_empty_history() -> None:
    assert render_history([], load) == History()


def test_images_are_numbered_in_the_order_in_which_they_are_sent() -> None:
    history = render_history(
        [message_with("small"), ToolMessage((Result("c", "a dot", images=(image("half"),)),))], load
    )
    assert lines(history) == ["Person: look [image 1 of those attached]", "Result: a dot [image 2 of those attached]"]
    assert [(one.media, len(one.content)) for one in history.images] == [
        ("image/png", 10),
        ("image/png", _SIZES["half"]),
    ]


def test_an_image_that_is_lost_or_not_accepted_is_named() -> None:
    (lost,) = lines(render_history([message_with("gone")], load))
    (refused,) = lines(render_history([message_with("small")], None))
    assert lost == "Person: look [an image was here, image/png: it cannot be read any more]"
    assert refused == "Person: look [an image was here, image/png: it was left out because you do not accept images]"


def test_the_newest_images_are_sent_and_the_others_named() -> None:
    many = render_history([message_with("small")] * (MAX_IMAGES + 2), load)
    assert len(many.images) == MAX_IMAGES
    assert [line.endswith("attached]") for line in lines(many)] == [False] * 2 + [True] * MAX_IMAGES
    large = render_history([message_with("large"), message_with("small")], load)
    assert large.images == [ImageContent("image/png", b"s" * 10)]
    assert ["left out because at most" in line for line in lines(large)] == [True, False]


def test_of_too_many_messages_the_first_and_the_newest_are_kept_whole() -> None:
    messages: list[Message] = [UserMessage(f"{n}: " + "x" * 3_000) for n in range(100)]
    history = render_history([*messages[:50], message_with("small"), *messages[50:]], load)
    rest = lines(history)
    assert rest[0].startswith("Person: 0: ")
    assert rest[-1].startswith("Person: 99: ")
    assert len(history.text) < MAX_HISTORY + 1_000
    (gap,) = [line for line in rest if not line.startswith("Person: ")]
    count, missing = 101 - len(rest) + 1, gap_length(rest)
    assert gap == f"[… {count} of 101 messages left out here, with {missing:,} characters and 1 image …]"
    assert "The person has all of it" in history.text
    assert history.images == []


def gap_length(rest: Sequence[str]) -> int:
    everything = sum(len(f"Person: {n}: ") + 3_000 for n in range(100)) + len("Person: look")
    return everything - sum(len(line) for line in rest if line.startswith("Person: "))


def test_cut_output_says_how_much_is_missing_and_where_it_is() -> None:
    output = "o" * 9_000
    text = f'{{"status":"done","task":"t1","output":"{output}","output_file":"/h/tasks/t1/output"}}'
    history = render_history([ToolMessage((Result("c", text),))], load)
    missing = f"[… {len(text) - 4_000:,} of {len(text):,} characters left out; the whole output: /h/tasks/t1/output …]"
    assert missing in history.text


def _calls(text: str) -> Message:
    return AssistantMessage(text, (Call("c", "shell", {"command": text}),))


def _returns(text: str) -> Message:
    return ToolMessage((Result("c", text * 900),))


def _says(text: str) -> Message:
    return UserMessage(text * 500)


_messages = st.one_of(
    st.text(max_size=30).map(_says), st.text(max_size=9_000).map(_calls), st.text(max_size=30).map(_returns)
)


@given(st.lists(_messages, max_size=40))
def test_it_is_bounded_whatever_was_said(messages: Sequence[Message]) -> None:
    history = render_history(messages, load)
    assert len(history.text) < MAX_HISTORY + 1_000
    assert bool(history.text) == bool(messages)


@pytest.mark.parametrize("count", [1, 7])
def test_a_short_history_is_whole(count: int) -> None:
    history = render_history([UserMessage("hi")] * count, load)
    assert lines(history) == ["Person: hi"] * count
    assert "The person has all of it" not in history.text
