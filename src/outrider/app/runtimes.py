"""Which runtimes there are, which of them can be used here, and what a person means who names one."""

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from functools import cache

from msgspec import Struct

from outrider import plugins
from outrider.app.api import AgentApi
from outrider.config.schema import Config, did_you_mean, lookup_setting
from outrider.core.errors import Refused
from outrider.core.events import Changed, Entry
from outrider.core.ports import NATIVE
from outrider.core.store_port import Session
from outrider.runtimes.base import ProbeResult, RuntimeProbe

_BACK_TO_NATIVE = f"`outrider runtime use {NATIVE}` goes back to the built-in one"


class RuntimeChoice(Struct, frozen=True):
    """A runtime that was asked for: `codex`, or `codex:gpt-5.5` for one of its models."""

    name: str
    model: str = ""

    def __str__(self) -> str:
        return f"{self.name}:{self.model}" if self.model else self.name

    @property
    def settings(self) -> Mapping[str, str]:
        """What to set for a session that it is to carry."""
        model = {model_setting(self.name): self.model} if takes_model(self.name) else {}
        return {"runtime": self.name, **model}


@cache
def runtime_names() -> Sequence[str]:
    """Every runtime that is installed, our own first. Nothing is installed into a process that runs."""
    return (NATIVE, *(name for name in plugins.names("runtimes") if name != NATIVE))


def parse_runtime(text: str) -> RuntimeChoice:
    """What a person means by this. Raises Refused when there is no such runtime."""
    name, mark, model = (part.strip() for part in text.strip().partition(":"))
    if name not in runtime_names():
        known = did_you_mean(name, runtime_names()) or f"; there are: {', '.join(runtime_names())}"
        raise Refused(f"no runtime is called {name[:60]!r}{known}")
    if mark and not (model and model.isprintable() and takes_model(name)):
        if takes_model(name):
            raise Refused(f"write {name}:<model>, or {name} alone")
        raise Refused(f"a model cannot be chosen for {name} here: write {name} alone")
    return RuntimeChoice(name, model)


def takes_model(name: str) -> bool:
    """Whether `name:<model>` can be asked for."""
    return lookup_setting(model_setting(name)) is not None and name != NATIVE


def model_setting(name: str) -> str:
    return f"{name}.model"


def runtime_of(settings: Mapping[str, str], default: str) -> RuntimeChoice:
    """What carries a session with these settings."""
    name = settings.get("runtime") or default
    return RuntimeChoice(name, settings.get(model_setting(name), ""))


def find_program(config: Config, name: str) -> str:
    """Where this runtime's program is; empty for one without. Starts nothing. Raises Refused with how to get it."""
    examine = _load_probe(name)
    return examine.locate(config) if examine else ""


def takes_client_tools(name: str) -> bool:
    """Whether tools of whoever sent an input can be used in its turns."""
    examine = _load_probe(name)
    return examine.takes_client_tools if examine else name == NATIVE


def can_steer(name: str) -> bool:
    """Whether what is said in the midst of a turn reaches it at once, and not only in its next step."""
    examine = _load_probe(name)
    return bool(examine and examine.steers)


def available_runtimes(config: Config) -> Sequence[str]:
    """The runtimes besides our own that seem to be usable. Starts nothing."""
    return [name for name in runtime_names() if name != NATIVE and _is_installed(config, name)]


async def probe(config: Config, name: str, *, is_quick: bool = False) -> AsyncGenerator[ProbeResult, None]:
    """Really try this runtime; at a glance, without leaving a trace in it. Nothing is asked of a model."""
    if name not in runtime_names():
        yield ProbeResult("program", "broken", f"no runtime is called {name!r}", _BACK_TO_NATIVE)
        return
    examine = _load_probe(name)
    if examine is None:
        yield ProbeResult("program", "fine", "built in" if name == NATIVE else "installed")
        if version := plugins.origin("runtimes", name):
            yield ProbeResult("version", "fine", version)
        return
    checks = (examine.quick_checks if is_quick else None) or examine.checks
    async for check in checks(config):
        yield check


async def apply_settings(agent: AgentApi, session: Session, settings: Mapping[str, str]) -> bool:
    """Set what of this is new to the session, e.g. `Wanted.settings`; whether anything was."""
    if not settings:
        return False
    new = changed_settings(settings, settings_of(await agent.journal(session)), agent.default_runtime)
    if new:
        await agent.change(session, new)
    return bool(new)


def changed_settings(settings: Mapping[str, str], current: Mapping[str, str], default: str) -> Mapping[str, str]:
    """What of these settings is new to a session that has those, where the runtime is this one unless it is set."""
    current = {"runtime": default, **current}
    return {name: value for name, value in settings.items() if current.get(name, "") != value}


def settings_of(journal: Iterable[Entry]) -> Mapping[str, str]:
    """What is set for a session: `State.settings`, without the rest of the state."""
    return {entry.body.name: entry.body.value for entry in journal if isinstance(entry.body, Changed)}


def _is_installed(config: Config, name: str) -> bool:
    try:
        find_program(config, name)
    except Refused:
        return False
    return True


@cache
def _load_probe(name: str) -> RuntimeProbe | None:
    """None where the runtime says nothing about itself."""
    return plugins.load("runtime_checks", name) if name in plugins.names("runtime_checks") else None
