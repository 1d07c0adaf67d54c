"""Rows of figures, printed as one table."""

import statistics
import sys
from collections.abc import Sequence

from msgspec import Struct


class Row(Struct, frozen=True):
    part: str
    what: str
    figure: str
    note: str = ""


def spread(seconds: Sequence[float]) -> str:
    """Median and minimum, in milliseconds."""
    return f"{statistics.median(seconds) * 1000:.1f} ms (min {min(seconds) * 1000:.1f})"


def show(rows: Sequence[Row]) -> None:
    """Print the rows as a Markdown table."""
    cells = [("part", "what", "figure", "note"), *((r.part, r.what, r.figure, r.note) for r in rows)]
    widths = [max(len(row[n]) for row in cells) for n in range(4)]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in cells
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    sys.stdout.write("\n".join(lines) + "\n")


def progress(text: str) -> None:
    sys.stderr.write(f"… {text}\n")
    sys.stderr.flush()
