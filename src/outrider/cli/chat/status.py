"""The status line, short forms of numbers and paths, and completions of slash commands. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from outrider.app.slash_commands import COMMANDS, ArgumentKind, SlashCommandSpec
from outrider.cli.chat.sanitize import sanitize_line
from outrider.core.text import plural


class StatusInfo(Struct, frozen=True):
    """The content of the status line."""

    model: str
    workspace: str
    session: str = ""
    """Empty for a session that does not exist yet."""
    tokens: int = 0
    cost: float | None = None
    seconds: int | None = None
    """Duration of the open turn; None when there is none."""
    queued: int = 0
    background_turns: int = 0
    """Turns running in other sessions."""
    tasks: int = 0
    """Background tasks of this session."""
    is_asking: bool = False
    is_unconfined: bool = False
    """Whether commands run without a sandbox, by the setting `sandbox.mode = "off"`."""


def render_status(info: StatusInfo, width: int = 200) -> str:
    """The status in one line; names and the workspace are clipped first when it gets too wide."""
    for longest in (40, 24, 12):
        line = _render_status_line(info, longest)
        if len(line) <= width:
            return line
    return sanitize_line(_render_status_line(info, 12), width)


def _render_status_line(info: StatusInfo, longest: int) -> str:
    parts = [
        "NO SANDBOX" if info.is_unconfined else "",
        sanitize_line(info.model, longest),
        short_path(info.workspace, longest),
        sanitize_line(info.session, longest) or "new session",
        f"{short_count(info.tokens)} tokens" if info.tokens else "",
        "" if info.cost is None else f"${info.cost:.4f}",
        _activity_text(info),
        plural(info.tasks, "task") if info.tasks else "",
        f"{info.queued} queued" if info.queued else "",
        f"+{plural(info.background_turns, 'session')}" if info.background_turns else "",
    ]
    return " · ".join(part for part in parts if part)


def _activity_text(info: StatusInfo) -> str:
    if info.is_asking:
        return "waiting for your answer"
    return "idle" if info.seconds is None else f"working {short_time(info.seconds)}"


def short_count(number: int) -> str:
    """`950`, `1.2k`, `3.4M`."""
    if number < 1_000:
        return str(number)
    return f"{number / 1_000:.1f}k" if number < 1_000_000 else f"{number / 1_000_000:.1f}M"


def short_time(seconds: int) -> str:
    """`12 s`, `3 min`, `2 h`, `5 d`."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{max(0, seconds)} s"


def short_path(path: str, longest: int = 40, home: str | None = None) -> str:
    """A path with `~` for the home folder; a long one is clipped at its beginning."""
    home = str(Path.home()) if home is None else home
    if path == home or path.startswith(home.rstrip("/") + "/"):
        path = "~" + path[len(home.rstrip("/")) :]
    path = sanitize_line(path, 4_096)
    return path if len(path) <= longest else "…" + path[-(longest - 1) :]


Suggestion = tuple[str, str]
"""A word and its description."""


def suggestions(line: str, by_kind: Mapping[ArgumentKind, Sequence[Suggestion]]) -> Iterable[Suggestion]:
    """Completions of the last word of a line. `by_kind` has the possible arguments."""
    if not line.startswith("/") or line.startswith("//"):
        return []
    name, space, argument = line[1:].partition(" ")
    if not space:
        return _command_suggestions(name)
    command = next((command for command in COMMANDS if command.name == name), None)
    return _argument_suggestions(command, argument.lstrip(), by_kind) if command else []


def _command_suggestions(start: str) -> Iterator[Suggestion]:
    for command in COMMANDS:
        if command.name.startswith(start.lower()):
            yield f"/{command.name} " if command.argument_kind else f"/{command.name}", command.description


def _argument_suggestions(
    command: SlashCommandSpec, start: str, by_kind: Mapping[ArgumentKind, Sequence[Suggestion]]
) -> Iterator[Suggestion]:
    for word, description in command.choices or by_kind.get(command.argument_kind, ()):
        if start.lower() in word.lower() and word != start:
            yield word, description
