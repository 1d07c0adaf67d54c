"""Every setting as it may be shown: its value, where that came from, what it is for. Secrets are masked."""

from typing import Any

import msgspec
from msgspec import Struct

from outrider.config.choice import Secret
from outrider.config.load import FILE, Config
from outrider.config.settings import RULES, SETTINGS, Setting

RULES_DESCRIPTION = "What was decided beforehand about calls."


class Shown(Struct, frozen=True):
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


def show_all(config: Config) -> list[Shown]:
    return [*(show(config, setting) for setting in SETTINGS), show_rules(config)]


def show(config: Config, setting: Setting) -> Shown:
    value = config.value(setting.name)
    return Shown(
        name=setting.name,
        value=config.shown(setting.name) if isinstance(value, Secret) else value,
        source=config.source(setting.name),
        category=setting.category,
        description=setting.description,
        default=setting.default,
        secret=setting.secret,
        variable=setting.env,
    )


def show_rules(config: Config) -> Shown:
    rules = [msgspec.to_builtins(rule) for rule in config.rules]
    return Shown(RULES, rules, rules_source(config), RULES, RULES_DESCRIPTION, [], secret=False, variable="")


def rules_source(config: Config) -> str:
    return FILE if config.rules else "default"
