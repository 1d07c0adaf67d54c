"""Keeps what a model is shown within bounds, and says what was cut."""

from outrider.core.ports import Blobs

MAX_RESULT_CHARS = 30_000
"""Characters of any result's text."""


def bounded(text: str, blobs: Blobs, head: int = 20_000, tail: int = 8_000, hint: str = "") -> tuple[str, str]:
    """The text, or its head and tail with a line between that says what is missing; and the blob that holds it all.

    The blob is empty when nothing was cut. `hint` tells the model how to come by the rest.
    """
    text = replace_lone_surrogates(text)
    if len(text) <= head + tail:
        return text, ""
    return head_and_tail(text, head, tail, hint), blobs.put(text.encode())


def head_and_tail(text: str, head: int = 20_000, tail: int = 8_000, hint: str = "") -> str:
    """Head and tail of a text that is longer than both, with a line between that says what is missing."""
    hint = hint or "ask for a smaller part to see it"
    gap = f"[… {len(text) - head - tail:,} of {len(text):,} characters left out; {hint} …]"
    return f"{text[:head]}\n{gap}\n{text[len(text) - tail :]}"


def replace_lone_surrogates(text: str) -> str:
    """The same text without what no JSON can carry (halves of characters)."""
    return text.encode("utf-8", "replace").decode()


def size(count: int) -> str:
    """A number of bytes as people say it."""
    if count < 1_024:
        return f"{count} bytes"
    return f"{count / 1_024:.1f} KiB" if count < 1_048_576 else f"{count / 1_048_576:.1f} MiB"


def plural(count: int, word: str, many: str = "") -> str:
    """`1 line`, `2 lines`, `1,200 matches`."""
    return f"{count:,} {word if count == 1 else many or word + 's'}"
