"""The installed runtimes: which of them work on this machine, and how a session chooses one."""

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
from outrider.core.types import runtime_name
from outrider.runtimes.base import ProbeResult, RuntimeProbe

_BACK_TO_NATIVE = f"`outrider runtime use {NATIVE}` switches back to the built-in runtime"


class RuntimeChoice(Struct, frozen=True):
    """A runtime, such as `codex`, or one with a model or a mode, such as `codex:gpt-5.5` or `acp:plan`."""

    name: str
    model: str = ""
    """Its model; for an ACP agent, its mode."""

    def __str__(self) -> str:
        return f"{self.name}:{self.model}" if self.model else self.name

    @property
    def settings(self) -> Mapping[str, str]:
        """The settings of a session that uses it."""
        model = {model_setting(self.name): self.model} if takes_model(self.name) else {}
        return {"runtime": self.name, **model}


@cache
def runtime_names() -> Sequence[str]:
    """Every installed runtime, the built-in one first."""
    return (NATIVE, *(name for name in plugins.names("runtimes") if name != NATIVE))


def parse_runtime(text: str) -> RuntimeChoice:
    """Parse the name of a runtime. Raises Refused when there is no such runtime."""
    name, mark, model = (part.strip() for part in text.strip().partition(":"))
    if name not in runtime_names():
        hint = did_you_mean(name, runtime_names()) or f"; available: {', '.join(runtime_names())}"
        raise Refused(f"there is no runtime {name[:60]!r}{hint}")
    if mark and not (model and model.isprintable() and takes_model(name)):
        if takes_model(name):
            raise Refused(f"write {name}:<{model_setting(name).partition('.')[2]}>, or {name} alone")
        raise Refused(f"a model cannot be chosen for {name} here: write {name} alone")
    return RuntimeChoice(name, model)


def takes_model(name: str) -> bool:
    """Whether `name:<model>` is allowed."""
    return lookup_setting(model_setting(name)) is not None and name != NATIVE


def model_setting(name: str) -> str:
    """The setting of what is chosen after the colon: a model, or the mode of a program that has modes."""
    return f"{name}.mode" if lookup_setting(f"{name}.mode") else f"{name}.model"


def runtime_of(settings: Mapping[str, str], default: str) -> RuntimeChoice:
    """The runtime of a session with these settings."""
    name = runtime_name(settings, default)
    return RuntimeChoice(name, settings.get(model_setting(name), ""))


def find_program(config: Config, name: str) -> str:
    """The path of this runtime's program; empty when it has none. Raises Refused, with how to install it."""
    runtime_probe = _load_probe(name)
    return runtime_probe.locate(config) if runtime_probe else ""


def takes_client_tools(name: str) -> bool:
    """Whether its turns can use tools of the client that sent the input."""
    runtime_probe = _load_probe(name)
    return runtime_probe.takes_client_tools if runtime_probe else name == NATIVE


def can_steer(name: str) -> bool:
    """Whether an input reaches a running turn at once, and not only in its next step."""
    runtime_probe = _load_probe(name)
    return bool(runtime_probe and runtime_probe.steers)


def available_runtimes(config: Config) -> Sequence[str]:
    """The external runtimes whose program is installed. Starts none of them."""
    return [name for name in runtime_names() if name != NATIVE and _is_installed(config, name)]


async def probe(config: Config, name: str, *, is_quick: bool = False) -> AsyncGenerator[ProbeResult, None]:
    """Check this runtime by starting it; `is_quick`: without leaving traces in it. No model is called."""
    if name not in runtime_names():
        yield ProbeResult("program", "broken", f"there is no runtime {name!r}", _BACK_TO_NATIVE)
        return
    runtime_probe = _load_probe(name)
    if runtime_probe is None:
        yield ProbeResult("program", "fine", "built in" if name == NATIVE else "installed")
        if version := plugins.origin("runtimes", name):
            yield ProbeResult("version", "fine", version)
        return
    checks = (runtime_probe.quick_checks if is_quick else None) or runtime_probe.checks
    async for check in checks(config):
        yield check


async def apply_settings(agent: AgentApi, session: Session, settings: Mapping[str, str]) -> bool:
    """Change the settings that differ from those of the session; whether any did."""
    if not settings:
        return False
    new = changed_settings(settings, settings_of(await agent.journal(session)), agent.default_runtime)
    if new:
        await agent.change(session, new)
    return bool(new)


def changed_settings(settings: Mapping[str, str], current: Mapping[str, str], default: str) -> Mapping[str, str]:
    """The settings that differ from the current ones of a session; `default` is the runtime if none is set."""
    current = {"runtime": default, **current}
    return {name: value for name, value in settings.items() if current.get(name, "") != value}


def settings_of(journal: Iterable[Entry]) -> Mapping[str, str]:
    """The settings of a session: `State.settings` without the rest of the state."""
    return {entry.body.name: entry.body.value for entry in journal if isinstance(entry.body, Changed)}


def _is_installed(config: Config, name: str) -> bool:
    try:
        find_program(config, name)
    except Refused:
        return False
    return True


@cache
def _load_probe(name: str) -> RuntimeProbe | None:
    """None when the runtime has no checks."""
    return plugins.load("runtime_checks", name) if name in plugins.names("runtime_checks") else None
