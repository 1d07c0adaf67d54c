"""Slash commands: the registry that every chat surface shares, and the parser of typed lines."""

import re
from typing import Literal

from msgspec import Struct

from outrider.core.text import closest_match

ArgumentKind = Literal["", "session", "model", "runtime", "words", "file", "name", "task", "permission", "choice"]


class SlashCommandSpec(Struct, frozen=True):
    """The declaration of one slash command."""

    name: str
    description: str
    argument_kind: ArgumentKind = ""
    """The kind of its argument, if any; a surface may complete it."""
    required: bool = False
    aliases: tuple[str, ...] = ()
    argument_hint: str = ""
    """The form of its argument, where it is not just the kind."""
    choices: tuple[tuple[str, str], ...] = ()
    """The values of a `choice`, each with a description."""

    @property
    def usage(self) -> str:
        """For example `/switch SESSION`."""
        shape = self.argument_hint or "/".join(word for word, _ in self.choices) or self.argument_kind.upper()
        if not shape:
            return f"/{self.name}"
        return f"/{self.name} {shape}" if self.required else f"/{self.name} [{shape}]"


COMMANDS: tuple[SlashCommandSpec, ...] = (
    SlashCommandSpec("help", "show the commands and keys", aliases=("?",)),
    SlashCommandSpec("new", "start a new session; a running turn continues in the background", "name"),
    SlashCommandSpec(
        "stop",
        "stop the turn and the command it waits for; all: also background tasks",
        "choice",
        choices=(("all", "also stop background tasks"),),
    ),
    SlashCommandSpec("tasks", "list tasks, or show one and the end of its output", "task"),
    SlashCommandSpec("tail", "follow the output of a task; Ctrl-C stops following", "task", required=True),
    SlashCommandSpec("write", "send a line to the input of a task", "task", required=True, argument_hint="TASK TEXT"),
    SlashCommandSpec("kill", "kill a task and all its processes", "task", required=True),
    SlashCommandSpec(
        "yes",
        "allow the pending call, once or from now on",
        "choice",
        choices=(("once", "for this call only"), ("session", "for this session"), ("workspace", "for this workspace")),
    ),
    SlashCommandSpec("no", "deny the pending call"),
    SlashCommandSpec(
        "questions",
        "list the pending questions of all sessions, show one in full, or answer it",
        "words",
        argument_hint="ID [ANSWER]",
    ),
    SlashCommandSpec(
        "permissions",
        "list permissions, or revoke one",
        "permission",
        argument_hint="forget PERMISSION",
    ),
    SlashCommandSpec("status", "show the session, its model, workspace, tokens and cost"),
    SlashCommandSpec("model", "show the model, or use another one in this session", "model"),
    SlashCommandSpec("runtime", "list the runtimes, or use another one in this session", "runtime"),
    SlashCommandSpec("sessions", "list recent sessions"),
    SlashCommandSpec("switch", "open another session", "session", required=True),
    SlashCommandSpec("compact", "summarise earlier messages before the next reply"),
    SlashCommandSpec("search", "search all sessions", "words", required=True),
    SlashCommandSpec("export", "export the session to a Markdown file", "file"),
    SlashCommandSpec("quit", "leave; an unfinished turn is resumed at the next start", aliases=("exit", "q")),
)
_BY_NAME = {name: command for command in COMMANDS for name in (command.name, *command.aliases)}
_COMMAND_LINE = re.compile(r"/([\w?-]*)(?:\s+(.*))?", re.DOTALL)


class PlainMessage(Struct, frozen=True):
    """A message to the agent."""

    text: str


class SlashCommand(Struct, frozen=True):
    """A command and its argument, which may be empty."""

    command: SlashCommandSpec
    argument: str = ""


class InvalidCommand(Struct, frozen=True):
    """A line that looks like a command but is not a valid one, and the reason."""

    reason: str


TypedLine = PlainMessage | SlashCommand | InvalidCommand


def parse_line(text: str) -> TypedLine:
    """Parse a typed line. `//…` is a message that begins with a slash; so is a path such as `/etc/hosts`."""
    if text.startswith("//"):
        return PlainMessage(text[1:])
    parts = _COMMAND_LINE.fullmatch(text.strip()) if text.startswith("/") else None
    if parts is None:
        return PlainMessage(text)
    name, argument = parts[1], (parts[2] or "").strip()
    command = _BY_NAME.get(name.lower())
    if command is None:
        match = closest_match(name.lower(), _BY_NAME)
        hint = f"did you mean /{match}?" if match else "type /help for a list"
        return InvalidCommand(f"There is no command /{name}; {hint} (//{name} … sends it to the agent)")
    if argument and not command.argument_kind:
        return InvalidCommand(f"{command.usage} takes no argument")
    if command.required and not argument:
        return InvalidCommand(f"Missing argument: {command.usage}")
    if argument and command.choices and argument.lower() not in (word for word, _ in command.choices):
        return InvalidCommand(f"{argument!r} is not a valid argument: {command.usage}")
    return SlashCommand(command, argument)
