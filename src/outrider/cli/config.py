"""`outrider config`: see and change what is set. A view of the registry; it decides nothing itself."""

import json
import shutil
import sys
from collections.abc import Generator
from contextlib import contextmanager
from itertools import groupby

import click
import msgspec

from outrider.config.edit import set_value, unset_value
from outrider.config.load import find_home, load
from outrider.config.rules import count_rules, render_rule
from outrider.config.schema import (
    CONFIG_FILE,
    RULES_DESCRIPTION,
    RULES_KEY,
    SETTINGS,
    Config,
    Setting,
    SettingReport,
    find_setting,
    report_rules,
    report_setting,
    report_settings,
    rules_source,
)
from outrider.config.secrets import secret_reference
from outrider.core.errors import Refused

_MAX_VALUE_WIDTH = 32
_MAX_INPUT_CHARS = 64_000


class ConfigUsageError(click.ClickException):
    """Something must be changed first."""

    exit_code = 2


@contextmanager
def _refused_as_usage_error() -> Generator[None]:
    """Whatever is refused is told in one line."""
    try:
        yield
    except Refused as error:
        raise ConfigUsageError(str(error)) from None


@click.group("config")
def command() -> None:
    """List and change settings."""


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@_refused_as_usage_error()
def list_settings(as_json: bool) -> None:
    """Every setting, its value, and where that came from."""
    loaded = load()
    if as_json:
        click.echo(_json(report_settings(loaded), indent=2))
    else:
        click.echo("\n".join(settings_table(loaded, shutil.get_terminal_size().columns)))
    _warn(loaded)


@command.command("get")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@_refused_as_usage_error()
def get(name: str, as_json: bool) -> None:
    """One setting's value; `rules` for what was decided beforehand."""
    if name == RULES_KEY:
        loaded = load()
        lines = [f"{number}. {render_rule(rule)}" for number, rule in enumerate(loaded.rules, 1)]
        shown = "\n".join(lines) or count_rules(loaded.rules)
        click.echo(_json(report_rules(loaded)) if as_json else shown)
        _warn(loaded)
        return
    setting, loaded = find_setting(name), load()
    click.echo(_json(report_setting(loaded, setting)) if as_json else loaded.display_value(setting.name))


@command.command("set", context_settings={"ignore_unknown_options": True})
@click.argument("name")
@click.argument("value")
@_refused_as_usage_error()
def set_(name: str, value: str) -> None:
    """Write a setting to config.toml. VALUE - reads it from standard input."""
    setting = find_setting(name)
    is_typed = value != "-"
    value = value if is_typed else _read_value(setting)
    if setting.name == "runtime.name":
        from outrider.app.runtimes import parse_runtime

        value = parse_runtime(value).name
    path = set_value(find_home(), setting.name, value)
    click.echo(f"{setting.name} is set in {path}")
    if setting.is_secret and is_typed and not secret_reference(value):
        click.echo(f"Your shell may remember this; next time: outrider config set {setting.name} -", err=True)
    _warn_if_overridden(setting)


@command.command("unset")
@click.argument("name")
@_refused_as_usage_error()
def unset_(name: str) -> None:
    """Remove a setting from config.toml."""
    home = find_home()
    is_gone = unset_value(home, name)
    click.echo(f"{name} is {'no longer' if is_gone else 'not'} set in {home / CONFIG_FILE}")


@command.command("path")
def path() -> None:
    """Where config.toml is, or would be."""
    click.echo(find_home() / CONFIG_FILE)


def settings_table(loaded: Config, width: int) -> list[str]:
    """The settings by category in aligned columns, and how many rules there are; descriptions cut to the width."""
    cells = {
        s.name: (s.name, _clip(loaded.display_value(s.name), _MAX_VALUE_WIDTH), loaded.source(s.name)) for s in SETTINGS
    }
    cells[RULES_KEY] = (RULES_KEY, count_rules(loaded.rules), rules_source(loaded))
    heads = ("name", "value", "source")
    widths = [max(len(cell) for cell in column) for column in zip(heads, *cells.values(), strict=True)]

    room = width - sum(widths) - 8

    def line(columns: tuple[str, ...], last: str) -> str:
        text = "  ".join(cell.ljust(size) for cell, size in zip(columns, widths, strict=True))
        return f"  {text}  {_clip(last, room) if room > 10 else ''}".rstrip()

    lines = [line(heads, "description")]
    for category, settings in groupby(SETTINGS, key=lambda setting: setting.category):
        lines += ["", category]
        lines += [line(cells[setting.name], setting.description) for setting in settings]
    return [*lines, "", RULES_KEY, line(cells[RULES_KEY], RULES_DESCRIPTION)]


def _clip(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(0, width - 1)].rstrip() + "…"


def _json(report: SettingReport | list[SettingReport], indent: int | None = None) -> str:
    return json.dumps(msgspec.to_builtins(report), indent=indent, ensure_ascii=False)


def _read_value(setting: Setting) -> str:
    if sys.stdin.isatty():
        return click.prompt(setting.name, hide_input=setting.is_secret)
    value = sys.stdin.read(_MAX_INPUT_CHARS + 1)
    if len(value) > _MAX_INPUT_CHARS:
        raise ConfigUsageError(f"{setting.name}: more than {_MAX_INPUT_CHARS:,} characters on standard input")
    return value


def _warn(loaded: Config) -> None:
    for warning in loaded.warnings:
        click.echo(f"warning: {warning}", err=True)


def _warn_if_overridden(setting: Setting) -> None:
    """A value in the environment hides the one just written, and the file may hold another mistake: say so."""
    try:
        loaded = load()
    except Refused as error:
        click.echo(f"warning: {error}", err=True)
        return
    if loaded.source(setting.name) != CONFIG_FILE:
        click.echo(f"warning: {loaded.source(setting.name)} overrules it", err=True)
    _warn(loaded)
