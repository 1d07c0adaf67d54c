"""`outrider config`: see and change what is set. A view of the registry; it decides nothing itself."""

import json
import shutil
import sys
from itertools import groupby

import click

from outrider.config.choice import Secret
from outrider.config.load import FILE, Config, find_home, load
from outrider.config.settings import SETTINGS, Setting, Unfit, find
from outrider.config.write import set_value, unset
from outrider.core.errors import Refused

_LONGEST_VALUE = 32
_LONGEST_INPUT = 64_000


class Misused(click.ClickException):
    """What was typed will not do."""

    exit_code = 2


@click.group("config")
def config() -> None:
    """See and change settings."""


@config.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_settings(as_json: bool) -> None:
    """Every setting, its value, and where that came from."""
    loaded = _load()
    if as_json:
        click.echo(json.dumps([_as_json(loaded, setting) for setting in SETTINGS], indent=2, ensure_ascii=False))
    else:
        click.echo("\n".join(table(loaded, shutil.get_terminal_size().columns)))
    _warn(loaded)


@config.command("get")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def get(name: str, as_json: bool) -> None:
    """One setting's value."""
    setting = _find(name)
    loaded = _load()
    click.echo(json.dumps(_as_json(loaded, setting), ensure_ascii=False) if as_json else loaded.shown(setting.name))


@config.command("set", context_settings={"ignore_unknown_options": True})
@click.argument("name")
@click.argument("value")
def set_(name: str, value: str) -> None:
    """Write a setting to config.toml. VALUE - reads it from standard input."""
    setting, home = _find(name), find_home()
    is_typed = value != "-"
    value = value if is_typed else _read_value(setting)
    try:
        path = set_value(home, setting.name, value)
    except Unfit as error:
        raise Misused(str(error)) from None
    except Refused as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"{setting.name} is set in {path}")
    if setting.secret and is_typed and not value.startswith(("env:", "file:")):
        click.echo(f"Your shell may remember this; next time: outrider config set {setting.name} -", err=True)
    _say_if_overruled(setting)


@config.command("unset")
@click.argument("name")
def unset_(name: str) -> None:
    """Remove a setting from config.toml."""
    home = find_home()
    try:
        is_gone = unset(home, name)
    except Unfit as error:
        raise Misused(str(error)) from None
    except Refused as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"{name} is {'no longer' if is_gone else 'not'} set in {home / FILE}")


@config.command("path")
def path() -> None:
    """Where config.toml is, or would be."""
    click.echo(find_home() / FILE)


def table(loaded: Config, width: int) -> list[str]:
    """The settings by category in aligned columns, descriptions cut to the width."""
    cells = {s.name: (s.name, _cut(loaded.shown(s.name), _LONGEST_VALUE), loaded.source(s.name)) for s in SETTINGS}
    heads = ("name", "value", "source")
    widths = [max(len(cell) for cell in column) for column in zip(heads, *cells.values(), strict=True)]

    def line(columns: tuple[str, ...], last: str) -> str:
        text = "  " + "  ".join(cell.ljust(size) for cell, size in zip(columns, widths, strict=True))
        return _cut(f"{text}  {last}".rstrip(), max(width, sum(widths) + 6))

    lines = [line(heads, "description")]
    for category, settings in groupby(SETTINGS, key=lambda setting: setting.category):
        lines += ["", category]
        lines += [line(cells[setting.name], setting.description) for setting in settings]
    return lines


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(0, width - 1)].rstrip() + "…"


def _as_json(loaded: Config, setting: Setting) -> dict[str, object]:
    value = loaded.value(setting.name)
    return {
        "name": setting.name,
        "value": loaded.shown(setting.name) if isinstance(value, Secret) else value,
        "source": loaded.source(setting.name),
        "category": setting.category,
        "description": setting.description,
        "default": setting.default,
        "secret": setting.secret,
        "variable": setting.env,
    }


def _load() -> Config:
    try:
        return load()
    except Refused as error:
        raise click.ClickException(str(error)) from None


def _find(name: str) -> Setting:
    try:
        return find(name)
    except Refused as error:
        raise Misused(str(error)) from None


def _read_value(setting: Setting) -> str:
    if sys.stdin.isatty():
        return click.prompt(setting.name, hide_input=setting.secret)
    value = sys.stdin.read(_LONGEST_INPUT + 1)
    if len(value) > _LONGEST_INPUT:
        raise Misused(f"{setting.name}: more than {_LONGEST_INPUT:,} characters on standard input")
    return value


def _warn(loaded: Config) -> None:
    for warning in loaded.warnings:
        click.echo(f"warning: {warning}", err=True)


def _say_if_overruled(setting: Setting) -> None:
    """A value in the environment hides the one just written, and the file may hold another mistake: say so."""
    try:
        loaded = load()
    except Refused as error:
        click.echo(f"warning: {error}", err=True)
        return
    if loaded.source(setting.name) != FILE:
        click.echo(f"warning: {loaded.source(setting.name)} overrules it", err=True)
    _warn(loaded)
