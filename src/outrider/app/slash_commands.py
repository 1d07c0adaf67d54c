"""The /commands of a chat: the registry of their names and arguments, and the parser of typed lines."""

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
    """The kind of its argument, for completion."""
    required: bool = False
    aliases: tuple[str, ...] = ()
    argument_hint: str = ""
    """How its argument is written, where the kind does not say it."""
    choices: tuple[tuple[str, str], ...] = ()
    """The values of a `choice`, each with its meaning."""

    @property
    def usage(self) -> str:
        """For example `/switch SESSION`."""
        argument = self.argument_hint or "/".join(word for word, _ in self.choices) or self.argument_kind.upper()
        if not argument:
            return f"/{self.name}"
        return f"/{self.name} {argument}" if self.required else f"/{self.name} [{argument}]"


COMMANDS: tuple[SlashCommandSpec, ...] = (
    SlashCommandSpec("help", "show the commands and keys", aliases=("?",)),
    SlashCommandSpec("new", "start a new session; a running turn continues in the background", "name"),
    SlashCommandSpec(
        "stop",
        "stop the turn and the command it waits for; all: background tasks too",
        "choice",
        choices=(("all", "background tasks too"),),
    ),
    SlashCommandSpec("tasks", "list the tasks, or show one and the end of its output", "task"),
    SlashCommandSpec("tail", "follow the output of a task; Ctrl-C stops following", "task", required=True),
    SlashCommandSpec("write", "write a line to the input of a task", "task", required=True, argument_hint="TASK TEXT"),
    SlashCommandSpec("kill", "kill a task and every process it started", "task", required=True),
    SlashCommandSpec(
        "yes",
        "allow the pending call, once or from now on",
        "choice",
        choices=(("once", "for this call"), ("session", "in this session"), ("workspace", "in this workspace")),
    ),
    SlashCommandSpec("no", "deny the pending call"),
    SlashCommandSpec(
        "permissions",
        "list permissions, or revoke one",
        "permission",
        argument_hint="forget PERMISSION",
    ),
    SlashCommandSpec("status", "show the session, its model, workspace, tokens and cost"),
    SlashCommandSpec("model", "show the model, or choose another one for this session", "model"),
    SlashCommandSpec("runtime", "show the runtime, or choose another one for this session", "runtime"),
    SlashCommandSpec("sessions", "list the latest sessions"),
    SlashCommandSpec("switch", "continue another session", "session", required=True),
    SlashCommandSpec("compact", "summarize the earlier part of the session before the next reply"),
    SlashCommandSpec("search", "search all sessions", "words", required=True),
    SlashCommandSpec("export", "export the session to a Markdown file", "file"),
    SlashCommandSpec("quit", "quit; a running turn resumes at the next start", aliases=("exit", "q")),
)
_BY_NAME = {name: command for command in COMMANDS for name in (command.name, *command.aliases)}
_COMMAND_LINE = re.compile(r"/([\w?-]*)(?:\s+(.*))?", re.DOTALL)


class PlainMessage(Struct, frozen=True):
    """A message to the agent."""

    text: str


class SlashCommand(Struct, frozen=True):
    """A command with its argument, which may be empty."""

    command: SlashCommandSpec
    argument: str = ""


class InvalidCommand(Struct, frozen=True):
    """A command that is unknown or incomplete."""

    reason: str


TypedLine = PlainMessage | SlashCommand | InvalidCommand


def parse_line(text: str) -> TypedLine:
    """Parse a typed line. `//…` is a message that begins with a slash; so is a path such as `/etc/hosts`."""
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
        return InvalidCommand(f"there is no command /{name}; {hint} (//{name} … sends it to the agent)")
    if argument and not command.argument_kind:
        return InvalidCommand(f"{command.usage} takes no argument")
    if command.required and not argument:
        return InvalidCommand(f"an argument is missing: {command.usage}")
    if argument and command.choices and argument.lower() not in (word for word, _ in command.choices):
        return InvalidCommand(f"{command.usage} takes no other argument")
    return SlashCommand(command, argument)
