"""How a /command that is being typed may go on. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from outrider.app.commands import COMMANDS, ArgumentKind, SlashCommandSpec

Suggestion = tuple[str, str]
"""A word, and what it means."""


def suggestions(line: str, known: Mapping[ArgumentKind, Sequence[Suggestion]]) -> Iterable[Suggestion]:
    """Whole words that the last word of this line may become. `known` has what arguments there are."""
    if not line.startswith("/") or line.startswith("//"):
        return []
    name, mark, argument = line[1:].partition(" ")
    if not mark:
        return _command_suggestions(name)
    command = next((command for command in COMMANDS if command.name == name), None)
    return _argument_suggestions(command, argument.lstrip(), known) if command else []


def _command_suggestions(start: str) -> Iterator[Suggestion]:
    for command in COMMANDS:
        if command.name.startswith(start.lower()):
            yield f"/{command.name} " if command.argument_kind else f"/{command.name}", command.description


def _argument_suggestions(
    command: SlashCommandSpec, start: str, known: Mapping[ArgumentKind, Sequence[Suggestion]]
) -> Iterator[Suggestion]:
    for word, meaning in command.choices or known.get(command.argument_kind, ()):
        if start.lower() in word.lower() and word != start:
            yield word, meaning
