"""`outrider runtime`: what can carry turns here, which of it does, and what is wrong with one that does not."""

from functools import partial
from pathlib import Path

import click
import msgspec
from msgspec import Struct

from outrider.app.api import OpenMode
from outrider.app.runtimes import RuntimeChoice, apply_settings, model_setting, parse_runtime, probe, runtime_names
from outrider.cli.commands import DONE
from outrider.cli.doctor import report
from outrider.cli.output import check_text, encode_json, one_line, print_line, warn
from outrider.cli.setup import SignalWatch, open_config, open_home, run_async
from outrider.config.edit import read_with_comment, set_value, unset_value
from outrider.config.load import find_home, load
from outrider.config.schema import CONFIG_FILE, Config
from outrider.core.errors import Refused
from outrider.core.ports import NATIVE
from outrider.ipc.client import connect_to_owner
from outrider.runtimes.base import ProbeResult

_LABEL = "outrider runtime"
_JSON = click.option("--json", "is_json", is_flag=True, help="Print JSON.")


class RuntimeStatus(Struct, frozen=True):
    """One runtime, as it is here."""

    name: str
    is_default: bool
    is_ready: bool
    is_installed: bool
    version: str = ""
    login: str = ""
    problem: str = ""
    advice: str = ""


@click.group("runtime")
def command() -> None:
    """Choose what carries turns: our own loop, Codex, an ACP agent."""


@command.command("list")
@_JSON
def list_runtimes(is_json: bool) -> int:
    """Every runtime, whether it can be used, and which one is."""
    return run_async(partial(_print_runtimes, open_config(), is_json))


@command.command("use")
@click.argument("name")
@click.option("--session", "-s", default="", metavar="NAME", help="For this session alone.")
def use_runtime(name: str, session: str) -> int:
    """Have NAME carry turns from now on. `codex:MODEL` has Codex ask that model."""
    wanted = parse_runtime(check_text(name, "the runtime's name"))
    check_text(session, "--session")
    return run_async(partial(_use_runtime, open_config(), wanted, session))


@command.command("doctor")
@click.argument("name", required=False)
@_JSON
def doctor(name: str | None, is_json: bool) -> int:
    """Really try NAME, or the one that is set, and say what to do about problems. No model is asked."""
    wanted = "" if name is None else parse_runtime(name).name
    return run_async(partial(_doctor, open_config(), wanted, is_json))


async def _print_runtimes(config: Config, is_json: bool, halt: SignalWatch) -> int:
    default = config.runtime.name
    known = list(dict.fromkeys((*runtime_names(), default)))
    found = [
        _runtime_status(name, name == default, [check async for check in probe(config, name, is_quick=True)])
        for name in known
    ]
    if is_json:
        print_line(encode_json([msgspec.to_builtins(one) for one in found], is_pretty=True))
    else:
        width = max(len(one.name) for one in found)
        print_line("\n".join(_status_line(one, width) for one in found))
    return DONE


def _runtime_status(name: str, is_default: bool, checks: list[ProbeResult]) -> RuntimeStatus:
    told = {check.name: check for check in checks}
    broken = next((check for check in checks if check.verdict == "broken"), None)
    return RuntimeStatus(
        name=name,
        is_default=is_default,
        is_ready=broken is None,
        is_installed=told["program"].verdict == "fine",
        version=told["version"].text if "version" in told and told["version"].verdict == "fine" else "",
        login=told["login"].text if "login" in told else "",
        problem=one_line(broken.text) if broken else "",
        advice=one_line(broken.advice) if broken else "",
    )


def _status_line(one: RuntimeStatus, width: int) -> str:
    mark = "*" if one.is_default else " "
    if one.is_ready:
        state = ", ".join(part for part in (one.version, one.login) if part)
        return f"{mark} {one.name:<{width}}  ready      {state}".rstrip()
    known = f"{one.version}, " if one.version else ""
    return f"{mark} {one.name:<{width}}  not ready  {known}{one.problem}{f' → {one.advice}' if one.advice else ''}"


async def _use_runtime(config: Config, choice: RuntimeChoice, session: str, halt: SignalWatch) -> int:
    await _check_usable(config, choice.name)
    if not session:
        return await _set_default(choice)
    async with open_home(config, OpenMode(_LABEL, "none")) as agent:
        found = await agent.find_by_prefix(session)
        is_new = await apply_settings(agent, found, choice.settings)
        print_line(f"{choice} carries session {found.name!r} {'from its next turn on' if is_new else 'already'}")
    return DONE


async def _check_usable(config: Config, name: str) -> None:
    """Raises Refused when it cannot be used, with what to do about it."""
    async for check in probe(config, name):
        if check.verdict == "broken":
            advice = f". What to do: {check.advice}" if check.advice else ""
            raise Refused(f"{name} cannot be used yet: {check.text}{advice}")


async def _set_default(choice: RuntimeChoice) -> int:
    home = find_home()
    for name in runtime_names():
        _forget_model(home, name)
    path = set_value(home, "runtime.name", choice.name)
    if choice.model:
        set_value(home, model_setting(choice.name), choice.model, _model_comment(choice))
    print_line(f"{choice} carries turns from now on, where a session asks for nothing else (set in {path})")
    source = load().source("runtime.name")
    if source != CONFIG_FILE:
        warn(f"{source} overrules it")
    async with connect_to_owner(home) as guest:
        if guest:
            owner = guest.info
            warn(f"{owner.label} (process {owner.pid}) goes on with {owner.runtime} until it is started again")
    return DONE


def _forget_model(home: Path, name: str) -> None:
    """Take back the model that an earlier `use` set. What somebody else set, or has changed since, stays."""
    setting = model_setting(name)
    value, note = read_with_comment(home, setting)
    if note and note == _model_comment(RuntimeChoice(name, str(value))):
        unset_value(home, setting)


def _model_comment(choice: RuntimeChoice) -> str:
    return f"outrider runtime use {choice}"


async def _doctor(config: Config, name: str, is_json: bool, halt: SignalWatch) -> int:
    name = name or config.runtime.name
    if name == NATIVE:
        from outrider.cli.doctor import check_model

        return await report(is_json, probe(config, name), check_model(config, online=False))
    return await report(is_json, probe(config, name))
