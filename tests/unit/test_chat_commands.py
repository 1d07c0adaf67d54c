"""What a typed line means, the same on every surface."""

import pytest

from outrider.app.commands import COMMANDS, Given, Line, Mistaken, Words, parse_line
from outrider.cli.chat.complete import suggestions

BY_NAME = {command.name: command for command in COMMANDS}


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("hello /help", Words("hello /help")),
        ("/help", Given(BY_NAME["help"])),
        ("/HELP ", Given(BY_NAME["help"])),
        ("/?", Given(BY_NAME["help"])),
        ("/exit", Given(BY_NAME["quit"])),
        ("/new", Given(BY_NAME["new"])),
        ("/new  my notes ", Given(BY_NAME["new"], "my notes")),
        ("/search two words", Given(BY_NAME["search"], "two words")),
        ("//help", Words("/help")),
        ("/etc/hosts: what is it?", Words("/etc/hosts: what is it?")),
        (" /help", Words(" /help")),
        ("/switch", Mistaken("say which: /switch SESSION")),
        ("/status now", Mistaken("/status takes nothing after it")),
        ("/stop now", Mistaken("/stop [all] takes nothing else after it")),
        ("/stop all", Given(BY_NAME["stop"], "all")),
        ("/yes", Given(BY_NAME["yes"])),
        ("/yes Session", Given(BY_NAME["yes"], "Session")),
        ("/yes always", Mistaken("/yes [once/session/workspace] takes nothing else after it")),
        ("/write t-1 two words", Given(BY_NAME["write"], "t-1 two words")),
        ("/kill", Mistaken("say which: /kill TASK")),
        ("/grants forget g-1", Given(BY_NAME["grants"], "forget g-1")),
        ("/modle x", Mistaken("there is no command /modle; did you mean /model? (//modle … says it to the agent)")),
        ("/xyzzy", Mistaken("there is no command /xyzzy; /help lists them (//xyzzy … says it to the agent)")),
        ("/", Mistaken("there is no command /; /help lists them (// … says it to the agent)")),
    ],
)
def test_a_typed_line_means_words_or_a_command_or_a_mistake(typed: str, meant: Line) -> None:
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
