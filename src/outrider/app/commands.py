"""The /commands of a chat, one registry for every surface: names, what they take, and what a typed line means."""

import re
from typing import Literal

from msgspec import Struct

from outrider.config.settings import nearest

Takes = Literal["", "session", "model", "runtime", "words", "file", "name", "task", "grant", "choice"]


class Command(Struct, frozen=True):
    """One /command."""

    name: str
    description: str
    takes: Takes = ""
    """What kind of argument it takes, if any; a surface may complete it."""
    required: bool = False
    aliases: tuple[str, ...] = ()
    shape: str = ""
    """How its argument is written, where the kind alone does not say it."""
    choices: tuple[tuple[str, str], ...] = ()
    """The words a `choice` is made from, each with what it means."""

    @property
    def usage(self) -> str:
        """As people are shown it, e.g. `/switch SESSION`."""
        shape = self.shape or "/".join(word for word, _ in self.choices) or self.takes.upper()
        if not shape:
            return f"/{self.name}"
        return f"/{self.name} {shape}" if self.required else f"/{self.name} [{shape}]"


COMMANDS: tuple[Command, ...] = (
    Command("help", "show the commands and keys", aliases=("?",)),
    Command("new", "begin another session; a turn that runs goes on in the background", "name"),
    Command(
        "stop",
        "stop the turn and the command it waits for; all: background tasks too",
        "choice",
        choices=(("all", "also tasks in the background"),),
    ),
    Command("tasks", "list the tasks, or show one and the end of its output", "task"),
    Command("tail", "follow a task's output; Ctrl-C ends that", "task", required=True),
    Command("write", "write a line to a task that reads", "task", required=True, shape="TASK TEXT"),
    Command("kill", "end a task and all it started", "task", required=True),
    Command(
        "yes",
        "allow what is asked, once or from now on",
        "choice",
        choices=(("once", "for this one call"), ("session", "in this session"), ("workspace", "in this workspace")),
    ),
    Command("no", "do not allow what is asked"),
    Command("grants", "list what is allowed from now on, or take one back", "grant", shape="forget GRANT"),
    Command("status", "show the session, its model, workspace, tokens and cost"),
    Command("model", "show the model, or use another one in this session", "model"),
    Command("runtime", "show what carries the turns, or have another carry those of this session", "runtime"),
    Command("sessions", "list the latest sessions"),
    Command("switch", "go on with another session", "session", required=True),
    Command("compact", "have the earlier part of the session summarised before the next reply"),
    Command("search", "find words in all sessions", "words", required=True),
    Command("export", "write the session to a Markdown file", "file"),
    Command("quit", "leave; a turn that runs is taken up at the next start", aliases=("exit", "q")),
)

_BY_NAME = {name: command for command in COMMANDS for name in (command.name, *command.aliases)}
_SHAPE = re.compile(r"/([\w?-]*)(?:\s+(.*))?", re.DOTALL)


class Words(Struct, frozen=True):
    """Something to say to the agent."""

    text: str


class Given(Struct, frozen=True):
    """A command, with its argument or an empty string."""

    command: Command
    argument: str = ""


class Mistaken(Struct, frozen=True):
    """Meant as a command, but not one that can be done; the reason helps on."""

    reason: str


Line = Words | Given | Mistaken


def parse_line(text: str) -> Line:
    """What a typed line means. `//…` says a text that begins with a slash; so does a path such as `/etc/hosts`."""
    if text.startswith("//"):
        return Words(text[1:])
    match = _SHAPE.fullmatch(text.strip()) if text.startswith("/") else None
    if match is None:
        return Words(text)
    name, argument = match[1], (match[2] or "").strip()
    command = _BY_NAME.get(name.lower())
    if command is None:
        close = nearest(name.lower(), _BY_NAME)
        hint = f"did you mean /{close}?" if close else "/help lists them"
        return Mistaken(f"there is no command /{name}; {hint} (//{name} … says it to the agent)")
    if argument and not command.takes:
        return Mistaken(f"{command.usage} takes nothing after it")
    if command.required and not argument:
        return Mistaken(f"say which: {command.usage}")
    if argument and command.choices and argument.lower() not in (word for word, _ in command.choices):
        return Mistaken(f"{command.usage} takes nothing else after it")
    return Given(command, argument)
