"""The real Codex with the scripted server as its model: its home, and a home of Outrider beside it."""

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

import outrider
from outrider.app.agent import Agent
from outrider.config.load import load
from outrider.core.events import Answered, Delta, Ended, Entry, Event, Input, Reply, Result, Started
from outrider.core.ports import Model
from outrider.testing.scripted_model import ScriptedCall
from outrider.testing.scripted_server.app import RecordedRequest
from tests.journey.support import Person

MODEL = "gpt-5.5"
"""A model that Codex knows, with its classic tools: exec_command, apply_patch and so on."""

_CONFIG = """\
model = "{model}"
model_provider = "local"

[model_providers.local]
name = "local"
base_url = "{url}"
wire_api = "responses"
requires_openai_auth = false
supports_websockets = false
request_max_retries = {retries}
stream_max_retries = {retries}
stream_idle_timeout_ms = 20000
{provider}
[analytics]
enabled = false

[feedback]
enabled = false

[features]
plugins = false
apps = false
unbounded_connection_retries = false
"""


def codex_binary() -> str:
    """The program from the installed package; the test is skipped without it."""
    found = find_spec("codex_cli_bin")
    if found is None or not found.submodule_search_locations:
        pytest.skip("no codex here")
    return str(Path(found.submodule_search_locations[0], "bin", "codex"))


def codex_home(folder: Path, url: str, *, retries: int = 0, provider: str = "", more: str = "") -> Path:
    """A fresh CODEX_HOME whose model provider is the Responses API at this address.

    `provider` are more lines about that provider (`env_key = "X"`), `more` are other settings.
    """
    home = folder / "codex"
    home.mkdir(exist_ok=True)
    written = _CONFIG.format(model=MODEL, url=url, retries=retries, provider=provider + "\n" if provider else "")
    (home / "config.toml").write_text(written + more)
    return home


def codex_settings(home: Path, **more: str) -> dict[str, str]:
    """Settings of Outrider for this Codex: `codex_settings(home, codex_approval="untrusted")`."""
    settings = {name.replace("_", ".", 1): value for name, value in more.items()}
    return {"runtime.name": "codex", "codex.command": codex_binary(), "codex.home": str(home), **settings}


@asynccontextmanager
async def open_codex(
    folder: Path, url: str, model: Model | None = None, environ: Mapping[str, str] | None = None, **settings: str
) -> AsyncGenerator[Agent]:
    """A home of Outrider in `folder/home` with sessions in `folder/work`, run by a Codex that uses this server.

    `model` is for sessions that are set to the native runtime. Opening the same folder again is a restart.
    """
    work, home = folder / "work", folder / "home"
    work.mkdir(exist_ok=True)
    home.mkdir(mode=0o700, exist_ok=True)
    codex = folder / "codex"
    if not codex.exists():
        codex_home(folder, url)
    config = load(home, environ or {}, codex_settings(codex, **settings))
    with pytest.MonkeyPatch.context() as patch:
        # Every login shell reads the dotfiles in the home folder.
        patch.setenv("HOME", str(folder))
        async with outrider.open(config=config, model=model, workspace=work) as agent:
            yield agent


def use_codex(person: Person, url: str, **more: str) -> None:
    """Set the Codex runtime for every command of this person from now on."""
    settings = codex_settings(codex_home(person.folder, url), **more)
    del settings["runtime.name"]
    person.environ["OUTRIDER_RUNTIME"] = "codex"
    person.environ |= {"OUTRIDER_" + name.replace(".", "_").upper(): value for name, value in settings.items()}


def shell(command: str, **more: object) -> ScriptedCall:
    """The call with which the model of Codex runs a command."""
    return ScriptedCall("exec_command", {"cmd": command, **more})


def texts(request: RecordedRequest) -> str:
    """The input of a request of Codex, as one text."""
    return json.dumps(request.body.get("input"), ensure_ascii=False)


class _NoteCollector:
    """Collects the notes of a turn."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def __call__(self, event: Event) -> None:
        if isinstance(event, Delta) and event.kind in ("note", "reset"):
            self.notes.append(event.text)


def collect_notes() -> _NoteCollector:
    """A listener for a turn: `agent.say(…, on_event=collect_notes())`."""
    return _NoteCollector()


def summarize(journal: Sequence[Entry]) -> list[str]:
    """Each entry in a few words."""
    return [_summarize_entry(entry) for entry in journal]


def _summarize_entry(entry: Entry) -> str:
    match entry.body:
        case Input(text=text):
            return f"input {text}"
        case Started(runtime=runtime):
            return f"started {runtime}"
        case Reply(text=text, calls=calls):
            return " ".join(["reply", *([text] if text else []), *(call.tool for call in calls)])
        case Result(text=text):
            return f"result {text}"
        case Ended(outcome=outcome, reason=reason):
            return f"ended {outcome} {reason}".strip()
        case Answered(answer=answer):
            return f"answered {answer}"
        case other:
            return type(other).__name__.lower()


def processes(folder: Path) -> list[int]:
    """The app-servers whose home is in this folder."""
    found: list[int] = []
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            with suppress(OSError):
                words = (process / "cmdline").read_bytes().split(b"\0")
                environ = (process / "environ").read_bytes()
                if b"app-server" in words and f"CODEX_HOME={folder / 'codex'}\0".encode() in environ:
                    found.append(int(process.name))
    return found
