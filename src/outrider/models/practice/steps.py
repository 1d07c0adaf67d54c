"""What the practice model understands of a request: a list of plain steps."""

from typing import Literal

from msgspec import Struct


class Ref(Struct, frozen=True):
    """A file meant by pointing at it."""

    which: int | None = None
    """0 is the first of the last listing, -1 its last; None is the file the step before was about."""


Path = str | Ref
"""From the workspace's root; `.` is the root itself."""


class Listing(Struct, frozen=True):
    path: Path = "."
    counts: bool = False
    """Whether only the number of files is wanted."""


class Reading(Struct, frozen=True):
    path: Path
    wants: Literal["text", "lines", "words", "summary"] = "text"
    """The text itself, how many lines or words it has, or its headings and first sentences."""
    first: int = 1
    limit: int = 0
    """Lines wanted; 0 for as many as the tool gives."""


class Searching(Struct, frozen=True):
    words: str
    """As the person wrote it."""
    pattern: str
    """As a regular expression."""
    path: Path = ""
    glob: str = ""


class Writing(Struct, frozen=True):
    path: Path
    content: str


class Appending(Struct, frozen=True):
    path: Path
    content: str


class Replacing(Struct, frozen=True):
    path: Path
    old: str
    new: str
    everywhere: bool = False


class Running(Struct, frozen=True):
    command: str
    background: bool = False
    """Whether nobody waits for it."""


class Tending(Struct, frozen=True):
    """Something to do with a background task."""

    action: Literal["read", "wait", "kill"]
    task: str = ""
    """Its id; empty for the last one."""


class Tasks(Struct, frozen=True):
    """Which background tasks there are."""

    only_open: bool = False


class Saying(Struct, frozen=True):
    """Words the person asked to hear."""

    text: str


class Talking(Struct, frozen=True):
    about: Literal["hello", "help", "self", "mood", "thanks", "bye", "model"]


class Noticed(Struct, frozen=True):
    """What happened to a background task. Its words are told, never read as a request."""

    notice: str


class Noting(Struct, frozen=True):
    """A notice that nobody has to act on."""

    text: str


class Unable(Struct, frozen=True):
    """Understood, but there is no tool for it."""

    wish: str


class Puzzled(Struct, frozen=True):
    """Not understood."""

    text: str


Step = (
    Listing
    | Reading
    | Searching
    | Writing
    | Appending
    | Replacing
    | Running
    | Tending
    | Tasks
    | Saying
    | Talking
    | Noticed
    | Noting
    | Unable
    | Puzzled
)
