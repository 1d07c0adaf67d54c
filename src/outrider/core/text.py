"""outrider.core.text."""


def clip(text: str, longest: int) -> str:
    """One line of at most so many characters."""
    flat = " ".join(text.split())
    return flat if len(flat) <= longest else flat[: longest - 1] + "…"


def duration(milliseconds: int) -> str:
    """A span of time as people say it."""
    seconds = max(0, milliseconds) / 1000
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = int(seconds // 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


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
