"""`outrider config`: list, read and change settings."""

import shutil
import sys
from collections.abc import Mapping
from itertools import groupby

import click

from outrider import plugins
from outrider.cli.commands import JSON_OPTION
from outrider.cli.output import check_text, format_table, one_line, print_json, print_line, warn
from outrider.config.edit import set_value, unset_value
from outrider.config.load import find_home, load
from outrider.config.models import parse_model_name
from outrider.config.rules import count_rules
from outrider.config.schema import (
    CONFIG_FILE,
    RULES_DESCRIPTION,
    RULES_KEY,
    SETTINGS,
    Config,
    find_setting,
    report_rules,
    report_setting,
    report_settings,
    rules_source,
)
from outrider.config.secrets import secret_reference
from outrider.config.setting_values import Setting
from outrider.core.approvals import render_rule
from outrider.core.errors import Refused

_MAX_VALUE_WIDTH = 32
_MAX_INPUT_CHARS = 64_000


@click.group("config")
def command() -> None:
    """List and change settings."""


@command.command("list")
@JSON_OPTION
def list_settings(is_json: bool) -> None:
    """List every setting with its value and its source."""
    config = load()
    if is_json:
        print_json(report_settings(config), is_pretty=True)
    else:
        print_line("\n".join(settings_table(config, shutil.get_terminal_size().columns)))
    _print_warnings(config)


@command.command("get")
@click.argument("name")
@JSON_OPTION
def get(name: str, is_json: bool) -> None:
    """Print the value of a setting. The name `rules` prints the approval rules."""
    if name == RULES_KEY:
        config = load()
        lines = [f"{number}. {render_rule(rule)}" for number, rule in enumerate(config.rules, 1)]
        text = "\n".join(lines) or count_rules(config.rules)
        report = report_rules(config)
        _print_warnings(config)
    else:
        setting, config = find_setting(name), load()
        report, text = report_setting(config, setting), config.display_value(setting.name)
    if is_json:
        print_json(report)
    else:
        print_line(text)


@command.command("set", context_settings={"ignore_unknown_options": True})
@click.argument("name")
@click.argument("value")
def set_(name: str, value: str) -> None:
    """Write a setting to config.toml. With `-` as VALUE, the value is read from stdin."""
    setting = find_setting(name)
    is_typed = value != "-"
    value = check_text(value, setting.name) if is_typed else _read_value(setting)
    if setting.name == "runtime.name":
        from outrider.app.runtimes import parse_runtime

        value = parse_runtime(value).name
    path = set_value(find_home(), setting.name, value)
    print_line(f"saved {setting.name} in {path}")
    if setting.is_secret and is_typed and not secret_reference(value):
        warn(f"your shell may have saved this secret; next time use: outrider config set {setting.name} -")
    _warn_if_overridden(setting)


@command.command("unset")
@click.argument("name")
def unset_(name: str) -> None:
    """Remove a setting from config.toml."""
    home = find_home()
    is_removed = unset_value(home, name)
    path = home / CONFIG_FILE
    print_line(f"removed {name} from {path}" if is_removed else f"{name} was not set in {path}")
    _warn_about_mistakes()


@command.command("path")
def path() -> None:
    """Print the path of config.toml, whether or not the file exists."""
    print_line(str(find_home() / CONFIG_FILE))


def settings_table(config: Config, width: int) -> list[str]:
    """The settings by category in aligned columns, and the number of rules; descriptions clipped to the width."""
    rows: Mapping[str, tuple[str, ...]] = {
        "": ("name", "value", "source", "description"),
        **{
            setting.name: (
                setting.name,
                one_line(config.display_value(setting.name), _MAX_VALUE_WIDTH),
                config.source(setting.name),
                setting.description,
            )
            for setting in SETTINGS
        },
        RULES_KEY: (RULES_KEY, count_rules(config.rules), rules_source(config), RULES_DESCRIPTION),
    }
    table = dict(zip(rows, format_table(list(rows.values()), indent="  ", width=width), strict=True))
    lines = [table[""]]
    for category, settings in groupby(SETTINGS, key=lambda setting: setting.category):
        lines += ["", category, *(table[setting.name] for setting in settings)]
    return [*lines, "", RULES_KEY, table[RULES_KEY]]


def _read_value(setting: Setting) -> str:
    if sys.stdin.isatty():
        return click.prompt(setting.name, hide_input=setting.is_secret)
    value = sys.stdin.read(_MAX_INPUT_CHARS + 1)
    if len(value) > _MAX_INPUT_CHARS:
        raise Refused(f"{setting.name}: stdin has more than {_MAX_INPUT_CHARS:,} characters")
    return value


def _print_warnings(config: Config) -> None:
    for warning in config.warnings:
        warn(warning)


def _warn_if_overridden(setting: Setting) -> None:
    """Warn about an environment variable that overrides the value just written, and about mistakes in the file."""
    config = _warn_about_mistakes()
    if config and config.source(setting.name) != CONFIG_FILE:
        warn(f"{config.source(setting.name)} overrides it")


def _warn_about_mistakes() -> Config | None:
    """The settings as they are now; None when Outrider cannot start with them. Warns about mistakes."""
    try:
        config = load()
        for name in filter(None, (config.model.name, *config.model.fallbacks)):
            parse_model_name(name, bool(config.model.url), plugins.names("models"))
    except Refused as error:
        warn(str(error))
        return None
    _print_warnings(config)
    return config
