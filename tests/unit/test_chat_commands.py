"""What a typed line means, the same on every surface."""

import pytest

from outrider.app.slash_commands import COMMANDS, InvalidCommand, PlainMessage, SlashCommand, TypedLine, parse_line
from outrider.cli.chat.status import suggestions

BY_NAME = {command.name: command for command in COMMANDS}


@pytest.mark.parametrize(
    ("typed", "meant"),
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
        ("/switch", InvalidCommand("an argument is missing: /switch SESSION")),
        ("/status now", InvalidCommand("/status takes no argument")),
        ("/stop now", InvalidCommand("/stop [all] takes no other argument")),
        ("/stop all", SlashCommand(BY_NAME["stop"], "all")),
        ("/yes", SlashCommand(BY_NAME["yes"])),
        ("/yes Session", SlashCommand(BY_NAME["yes"], "Session")),
        ("/yes always", InvalidCommand("/yes [once/session/workspace] takes no other argument")),
        ("/write t-1 two words", SlashCommand(BY_NAME["write"], "t-1 two words")),
        ("/kill", InvalidCommand("an argument is missing: /kill TASK")),
        ("/permissions forget g-1", SlashCommand(BY_NAME["permissions"], "forget g-1")),
        (
            "/modle x",
            InvalidCommand("there is no command /modle; did you mean /model? (//modle … sends it to the agent)"),
        ),
        ("/xyzzy", InvalidCommand("there is no command /xyzzy; /help lists them (//xyzzy … sends it to the agent)")),
        ("/", InvalidCommand("there is no command /; /help lists them (// … sends it to the agent)")),
    ],
)
def test_a_typed_line_means_words_or_a_command_or_a_mistake(typed: str, meant: TypedLine) -> None:
    assert parse_line(typed) == meant


def test_every_command_has_a_name_of_its_own_and_says_what_it_does() -> None:
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
def test_a_command_is_completed_and_so_is_what_it_takes(typed: str, words: list[str]) -> None:
    known = suggestions(
        typed, {"session": [("notes", ""), ("build", "")], "model": [("practice", "")], "task": [("t-1", "")]}
    )
    assert [word for word, _ in known] == words
