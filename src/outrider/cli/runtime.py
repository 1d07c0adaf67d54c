"""`outrider runtime`: list the runtimes, choose one, and find out why one cannot be used."""

from functools import partial
from pathlib import Path

import click
from msgspec import Struct

from outrider.app.api import OpenMode, check_runtime_choice
from outrider.app.runtimes import RuntimeChoice, apply_settings, model_setting, parse_runtime, probe, runtime_names
from outrider.cli.commands import JSON_OPTION
from outrider.cli.doctor import check_model, print_report
from outrider.cli.output import check_text, format_table, one_line, print_json, print_line, warn
from outrider.cli.setup import open_config, open_home, run_async
from outrider.config.edit import read_with_comment, set_value, unset_value
from outrider.config.load import find_home, load
from outrider.config.schema import CONFIG_FILE, Config
from outrider.core.errors import Refused
from outrider.core.ports import NATIVE
from outrider.ipc.client import connect_to_owner
from outrider.runtimes.base import ProbeResult

_LABEL = "outrider runtime"


class RuntimeStatus(Struct, frozen=True):
    """One runtime on this machine. The fields are the keys of `runtime list --json`."""

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
    """Choose the runtime that runs turns: the built-in loop, Codex, an ACP agent or another agent's server."""


@command.command("list")
@JSON_OPTION
def list_runtimes(is_json: bool) -> int:
    """List every runtime and whether it is ready; * marks the default."""
    return run_async(partial(_print_runtimes, open_config(), is_json))


@command.command("use")
@click.argument("name")
@click.option("--session", "-s", default="", metavar="SESSION", help="Change only this session.")
def use_runtime(name: str, session: str) -> int:
    """Make NAME the default runtime, after checking that it works. `codex:MODEL` also sets Codex's model."""
    choice = parse_runtime(check_text(name, "the runtime's name"))
    check_text(session, "--session")
    return run_async(partial(_use_runtime, open_config(), choice, session))


@command.command("doctor")
@click.argument("name", required=False)
@JSON_OPTION
def doctor(name: str | None, is_json: bool) -> int:
    """Check that a runtime works and suggest fixes. Without NAME, check the default. Sends nothing to a model."""
    runtime = "" if name is None else parse_runtime(name).name
    return run_async(partial(_doctor, open_config(), runtime, is_json))


async def _print_runtimes(config: Config, is_json: bool) -> None:
    default = config.default_runtime
    statuses = [
        _runtime_status(name, name == default, [check async for check in probe(config, name, is_quick=True)])
        for name in dict.fromkeys((*runtime_names(), default))
    ]
    if is_json:
        print_json(statuses, is_pretty=True)
    else:
        print_line("\n".join(format_table([_status_row(status) for status in statuses])))


def _runtime_status(name: str, is_default: bool, checks: list[ProbeResult]) -> RuntimeStatus:
    by_name = {check.name: check for check in checks}
    broken = next((check for check in checks if check.verdict == "broken"), None)
    version = by_name.get("version")
    return RuntimeStatus(
        name=name,
        is_default=is_default,
        is_ready=broken is None,
        is_installed=by_name["program"].verdict == "fine",
        version=version.text if version and version.verdict != "broken" else "",
        login=by_name["login"].text if "login" in by_name else "",
        problem=one_line(broken.text) if broken else "",
        advice=one_line(broken.advice) if broken else "",
    )


def _status_row(status: RuntimeStatus) -> tuple[str, ...]:
    name = f"{'*' if status.is_default else ' '} {status.name}"
    if status.is_ready:
        return name, "ready", ", ".join(part for part in (status.version, status.login) if part)
    problem = ", ".join(part for part in (status.version, status.problem) if part)
    return name, "not ready", problem + (f" → {status.advice}" if status.advice else "")


async def _use_runtime(config: Config, choice: RuntimeChoice, session: str) -> None:
    check_runtime_choice(choice.settings, config.default_runtime)
    async for check in probe(config, choice.name):
        if check.verdict == "broken":
            advice = f". To fix it: {check.advice}" if check.advice else ""
            raise Refused(f"{choice.name} cannot be used yet: {check.text.rstrip('.')}{advice}")
    if not session:
        await _set_default(choice)
        return
    async with open_home(config, OpenMode(_LABEL, "none")) as agent:
        row = await agent.find_by_prefix(session)
        is_new = await apply_settings(agent, row, choice.settings)
        effect = f"uses {choice} from its next turn on" if is_new else f"already uses {choice}"
        print_line(f"session {row.name!r} {effect}")


async def _set_default(choice: RuntimeChoice) -> None:
    home = find_home()
    for name in runtime_names():
        _unset_model(home, name)
    path = set_value(home, "runtime.name", choice.name)
    if choice.model:
        set_value(home, model_setting(choice.name), choice.model, _model_comment(choice))
    print_line(f"{choice} is now the default runtime (set in {path})")
    source = load().source("runtime.name")
    if source != CONFIG_FILE:
        warn(f"{source} overrides it")
    async with connect_to_owner(home) as connection:
        if connection:
            owner = connection.info
            warn(f"{owner.label} (process {owner.pid}) keeps using {owner.runtime} until it is restarted")


def _unset_model(home: Path, name: str) -> None:
    """Remove the model that an earlier `use` set, unless the user has changed it since."""
    setting = model_setting(name)
    value, comment = read_with_comment(home, setting)
    if comment and comment == _model_comment(RuntimeChoice(name, str(value))):
        unset_value(home, setting)


def _model_comment(choice: RuntimeChoice) -> str:
    return f"outrider runtime use {choice}"


async def _doctor(config: Config, name: str, is_json: bool) -> int:
    name = name or config.default_runtime
    if name == NATIVE:
        return await print_report(is_json, probe(config, name), check_model(config, online=False))
    return await print_report(is_json, probe(config, name))
