"""Every setting as it may be shown: its value, where that came from, what it is for. Secrets are masked."""

from typing import Any

import msgspec
from msgspec import Struct

from outrider.config.choice import Secret
from outrider.config.load import CONFIG_FILE, Config
from outrider.config.settings import RULES_KEY, SETTINGS, Setting

RULES_DESCRIPTION = "What was decided beforehand about calls."


class SettingReport(Struct, frozen=True):
    """One setting."""

    name: str
    value: Any
    source: str
    category: str
    description: str
    default: Any
    secret: bool
    variable: str
    """The environment variable that sets it."""


def report_settings(config: Config) -> list[SettingReport]:
    return [*(report_setting(config, setting) for setting in SETTINGS), report_rules(config)]


def report_setting(config: Config, setting: Setting) -> SettingReport:
    value = config.value(setting.name)
    return SettingReport(
        name=setting.name,
        value=config.display_value(setting.name) if isinstance(value, Secret) else value,
        source=config.source(setting.name),
        category=setting.category,
        description=setting.description,
        default=setting.default,
        secret=setting.is_secret,
        variable=setting.env_variable,
    )


def report_rules(config: Config) -> SettingReport:
    rules = [msgspec.to_builtins(rule) for rule in config.rules]
    return SettingReport(
        RULES_KEY, rules, rules_source(config), RULES_KEY, RULES_DESCRIPTION, [], secret=False, variable=""
    )


def rules_source(config: Config) -> str:
    return CONFIG_FILE if config.rules else "default"
