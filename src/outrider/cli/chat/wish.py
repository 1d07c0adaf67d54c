"""What was typed after `outrider chat`."""

from msgspec import Struct


class ChatOptions(Struct, frozen=True):
    """Which session to open, and how."""

    session: str = ""
    model: str = ""
    runtime: str | None = None
    workspace: str = ""
    is_new: bool = False
    is_continued: bool = False
