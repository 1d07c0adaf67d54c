"""Slash commands: parsing and completion of typed lines, the same on every surface."""

import pytest

from outrider.app.slash_commands import COMMANDS, InvalidCommand, PlainMessage, SlashCommand, TypedLine, parse_line
from outrider.cli.chat.status import suggestions

BY_NAME = {command.name: command for command in COMMANDS}


@pytest.mark.parametrize(
    ("typed", "parsed"),
    [
        ("hello /help", PlainMessage("hello /help")),
        ("/help", SlashCommand(BY_NAME["help"])),
        ("/HELP ", SlashCommand(BY_NAME["help"])),
        ("/?", SlashCommand(BY_NAME["help"])),
        ("/exit", SlashCommand(BY_NAME["quit"])),
        ("/new", SlashCommand(BY_NAME["new"])),
        ("/new  my notes ", SlashCommand(BY_NAME["new"], "my notes")),
        ("/search two words", SlashCommand(BY_NAME["search"], "two words")),
        ("//help", PlainMessage("/help")),
        ("/etc/hosts: what is it?", PlainMessage("/etc/hosts: what is it?")),
        (" /help", PlainMessage(" /help")),
        ("/switch", InvalidCommand("Missing argument: /switch SESSION")),
        ("/status now", InvalidCommand("/status takes no argument")),
        ("/stop now", InvalidCommand("'now' is not a valid argument: /stop [all]")),
        ("/stop all", SlashCommand(BY_NAME["stop"], "all")),
        ("/yes", SlashCommand(BY_NAME["yes"])),
        ("/yes Session", SlashCommand(BY_NAME["yes"], "Session")),
        ("/yes always", InvalidCommand("'always' is not a valid argument: /yes [once/session/workspace]")),
        ("/write t-1 two words", SlashCommand(BY_NAME["write"], "t-1 two words")),
        ("/kill", InvalidCommand("Missing argument: /kill TASK")),
        ("/permissions forget g-1", SlashCommand(BY_NAME["permissions"], "forget g-1")),
        (
            "/modle x",
            InvalidCommand("There is no command /modle; did you mean /model? (//modle … sends it to the agent)"),
        ),
        (
            "/xyzzy",
            InvalidCommand("There is no command /xyzzy; type /help for a list (//xyzzy … sends it to the agent)"),
        ),
        ("/", InvalidCommand("There is no command /; type /help for a list (// … sends it to the agent)")),
    ],
)
def test_a_typed_line_is_a_message_a_command_or_an_invalid_command(typed: str, parsed: TypedLine) -> None:
    assert parse_line(typed) == parsed


def test_every_command_has_a_unique_name_and_a_description() -> None:
    names = [name for command in COMMANDS for name in (command.name, *command.aliases)]
    assert (len(set(names)), [command.name for command in COMMANDS if not command.description]) == (len(names), [])


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("/s", ["/stop ", "/status", "/sessions", "/switch ", "/search "]),
        ("/switch ", ["notes", "build"]),
        ("/switch not", ["notes"]),
        ("/model pra", ["practice"]),
        ("/stop ", ["all"]),
        ("/status ", []),
        ("/yes w", ["workspace"]),
        ("/kill t", ["t-1"]),
        ("/nothing ", []),
        ("//s", []),
        ("s", []),
    ],
)
def test_commands_and_their_arguments_are_completed(typed: str, words: list[str]) -> None:
    completions = suggestions(
        typed, {"session": [("notes", ""), ("build", "")], "model": [("practice", "")], "task": [("t-1", "")]}
    )
    assert [word for word, _ in completions] == words
