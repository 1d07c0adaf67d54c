"""Two columns of text, for what /commands show. Pure."""

from collections.abc import Sequence

from outrider.cli.chat.shows import Note


def two_columns(rows: Sequence[tuple[str, str]]) -> Note:
    """One line for each row."""
    wide = max(len(left) for left, _ in rows)
    return Note("\n".join(f"{left:<{wide}}  {right}" for left, right in rows), "plain")
