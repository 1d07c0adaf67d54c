"""The /commands of a chat, one registry for every surface: names, what they take, and what a typed line means."""

import re
from typing import Literal

from msgspec import Struct

from outrider.config.schema import closest_match

ArgumentKind = Literal["", "session", "model", "runtime", "words", "file", "name", "task", "permission", "choice"]


class SlashCommandSpec(Struct, frozen=True):
    """One /command."""

    name: str
    description: str
    argument_kind: ArgumentKind = ""
    """What kind of argument it takes, if any; a surface may complete it."""
    required: bool = False
    aliases: tuple[str, ...] = ()
    argument_hint: str = ""
    """How its argument is written, where the kind alone does not say it."""
    choices: tuple[tuple[str, str], ...] = ()
    """The words a `choice` is made from, each with what it means."""

    @property
    def usage(self) -> str:
        """As people are shown it, e.g. `/switch SESSION`."""
        shape = self.argument_hint or "/".join(word for word, _ in self.choices) or self.argument_kind.upper()
        if not shape:
            return f"/{self.name}"
        return f"/{self.name} {shape}" if self.required else f"/{self.name} [{shape}]"


COMMANDS: tuple[SlashCommandSpec, ...] = (
    SlashCommandSpec("help", "show the commands and keys", aliases=("?",)),
    SlashCommandSpec("new", "begin another session; a turn that runs goes on in the background", "name"),
    SlashCommandSpec(
        "stop",
        "stop the turn and the command it waits for; all: background tasks too",
        "choice",
        choices=(("all", "also tasks in the background"),),
    ),
    SlashCommandSpec("tasks", "list the tasks, or show one and the end of its output", "task"),
    SlashCommandSpec("tail", "follow a task's output; Ctrl-C ends that", "task", required=True),
    SlashCommandSpec("write", "write a line to a task that reads", "task", required=True, argument_hint="TASK TEXT"),
    SlashCommandSpec("kill", "end a task and all it started", "task", required=True),
    SlashCommandSpec(
        "yes",
        "allow what is asked, once or from now on",
        "choice",
        choices=(("once", "for this one call"), ("session", "in this session"), ("workspace", "in this workspace")),
    ),
    SlashCommandSpec("no", "do not allow what is asked"),
    SlashCommandSpec(
        "permissions",
        "list what is allowed from now on, or revoke one",
        "permission",
        argument_hint="forget PERMISSION",
    ),
    SlashCommandSpec("status", "show the session, its model, workspace, tokens and cost"),
    SlashCommandSpec("model", "show the model, or use another one in this session", "model"),
    SlashCommandSpec("runtime", "show what carries the turns, or have another carry those of this session", "runtime"),
    SlashCommandSpec("sessions", "list the latest sessions"),
    SlashCommandSpec("switch", "go on with another session", "session", required=True),
    SlashCommandSpec("compact", "have the earlier part of the session summarised before the next reply"),
    SlashCommandSpec("search", "find words in all sessions", "words", required=True),
    SlashCommandSpec("export", "write the session to a Markdown file", "file"),
    SlashCommandSpec("quit", "leave; a turn that runs is taken up at the next start", aliases=("exit", "q")),
)
_BY_NAME = {name: command for command in COMMANDS for name in (command.name, *command.aliases)}
_COMMAND_LINE = re.compile(r"/([\w?-]*)(?:\s+(.*))?", re.DOTALL)


class PlainMessage(Struct, frozen=True):
    """Something to say to the agent."""

    text: str


class SlashCommand(Struct, frozen=True):
    """A command, with its argument or an empty string."""

    command: SlashCommandSpec
    argument: str = ""


class InvalidCommand(Struct, frozen=True):
    """Meant as a command, but not one that can be done; the reason helps on."""

    reason: str


TypedLine = PlainMessage | SlashCommand | InvalidCommand


def parse_line(text: str) -> TypedLine:
    """What a typed line means. `//…` says a text that begins with a slash; so does a path such as `/etc/hosts`."""
    if text.startswith("//"):
        return PlainMessage(text[1:])
    match = _COMMAND_LINE.fullmatch(text.strip()) if text.startswith("/") else None
    if match is None:
        return PlainMessage(text)
    name, argument = match[1], (match[2] or "").strip()
    command = _BY_NAME.get(name.lower())
    if command is None:
        close = closest_match(name.lower(), _BY_NAME)
        hint = f"did you mean /{close}?" if close else "/help lists them"
        return InvalidCommand(f"there is no command /{name}; {hint} (//{name} … says it to the agent)")
    if argument and not command.argument_kind:
        return InvalidCommand(f"{command.usage} takes nothing after it")
    if command.required and not argument:
        return InvalidCommand(f"say which: {command.usage}")
    if argument and command.choices and argument.lower() not in (word for word, _ in command.choices):
        return InvalidCommand(f"{command.usage} takes nothing else after it")
    return SlashCommand(command, argument)
