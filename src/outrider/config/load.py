"""Loader of the configuration: flags, environment variables and config.toml merged into one frozen `Config`."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outrider.config.environment import check_folder
from outrider.config.models import KEY_VARIABLES
from outrider.config.rules import ineffective_rule_warnings, parse_rules
from outrider.config.schema import (
    CONFIG_FILE,
    OTHER_VARIABLES,
    OWN_KEY_VARIABLES,
    RULES_KEY,
    SETTINGS,
    Config,
    build_sections,
    find_setting,
    lookup_setting,
    printable_name,
    unknown_setting,
)
from outrider.config.secrets import Secret, resolve_secret, secret_reference
from outrider.config.setting_values import SettingKind, SettingValue, parse_text, parse_value
from outrider.core.errors import Refused
from outrider.core.text import closest_match

_MAX_FILE_BYTES = 1_000_000
_VARIABLE_PREFIX = "OUTRIDER_"


def find_home(environ: Mapping[str, str] | None = None) -> Path:
    """`OUTRIDER_HOME`, or `~/.outrider`."""
    path = (os.environ if environ is None else environ).get("OUTRIDER_HOME", "").strip()
    return Path(os.path.abspath(os.path.expanduser(path or "~/.outrider")))


def load(
    home: Path | None = None,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, str] | None = None,
) -> Config:
    """Load the configuration: flags take precedence over the environment, config.toml and defaults.

    Raises Refused with a one-line message.
    """
    environ = os.environ if environ is None else environ
    home = find_home(environ) if home is None else home
    path = home / CONFIG_FILE
    tables = parse_toml(read_file(path), path)
    rules = parse_rules(tables.pop(RULES_KEY, []), path, home)
    layers = (
        _from_flags(overrides or {}),
        _from_environment(environ),
        _from_tables(tables, path),
    )
    values: dict[str, SettingValue] = {setting.name: setting.default for setting in SETTINGS}
    sources: dict[str, str] = {}
    for layer in reversed(layers):
        for name, (value, source) in layer.items():
            values[name], sources[name] = value, source
    values |= _absolute_folders(values, sources, home)
    warnings = [*_unknown_variables(environ), *ineffective_rule_warnings(rules)]
    if values["sandbox.mode"] == "off":
        warnings.append("sandbox.mode is off: commands run without a sandbox and without a question")
    secrets, references = _resolve_secrets(values, sources, path, environ, warnings)
    if secrets["remote.key"] and _is_sent_in_clear(str(values["remote.url"])):
        warnings.append("remote.key is sent without encryption to another machine: use https:// in remote.url")
    return Config(
        home=home,
        sources=sources,
        references=references,
        model_by_setting=_model_by_setting(layers),
        keys={
            name: Secret(environ[name].strip())
            for name in KEY_VARIABLES | OWN_KEY_VARIABLES
            if environ.get(name, "").strip()
        },
        rules=rules,
        warnings=tuple(warnings),
        **build_sections({**values, **secrets}),
    )


def _is_sent_in_clear(url: str) -> bool:
    """Whether what is sent to this URL can be read on the network."""
    scheme, _, rest = url.partition("://")
    return scheme.lower() == "http" and not rest.startswith(("127.", "localhost", "[::1]"))


_Layer = dict[str, tuple[SettingValue, str]]


def _from_flags(overrides: Mapping[str, str]) -> _Layer:
    settings = {find_setting(name): text for name, text in overrides.items() if text.strip()}
    return {setting.name: (parse_text(setting, text, "flag"), "flag") for setting, text in settings.items()}


def _from_environment(environ: Mapping[str, str]) -> _Layer:
    return {
        setting.name: (
            parse_text(setting, environ[setting.env_variable], setting.env_variable),
            f"environment {setting.env_variable}",
        )
        for setting in SETTINGS
        if environ.get(setting.env_variable, "").strip()
    }


def _from_tables(tables: Mapping[str, Any], path: Path) -> _Layer:
    layer: _Layer = {}
    for name, value in flatten(tables).items():
        setting = lookup_setting(name)
        if setting is None:
            raise Refused(f"{path}: {unknown_setting(name)}")
        layer[setting.name] = (parse_value(setting, value, str(path)), CONFIG_FILE)
    return layer


def read_file(path: Path) -> str:
    """The text of config.toml; empty when there is no file."""
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise Refused(f"{path}: cannot be read: {error.strerror}") from None
    if len(content) > _MAX_FILE_BYTES:
        raise Refused(f"{path}: the file is larger than {_MAX_FILE_BYTES:,} bytes")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise Refused(f"{path}: line {line}: not valid UTF-8") from None


def parse_toml(text: str, path: Path) -> dict[str, Any]:
    """Parse TOML. Raises Refused with the line and the reason."""
    if not text:
        return {}
    import tomllib  # Slow to import, and most homes have no config.toml.

    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # A number of a million digits is a plain ValueError.
        reason, _, position = str(error).rpartition(" (at ")
        line = position.removesuffix(")").partition(",")[0].replace("document", "file")
        raise Refused(f"{path}: {line}: {reason}" if reason else f"{path}: {error}") from None


def flatten(tables: Mapping[str, Any], prefix: str = "") -> dict[str, object]:
    """The values of nested tables by dotted name."""
    flat: dict[str, object] = {}
    for key, value in tables.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")  # pyright: ignore[reportUnknownArgumentType]
        else:
            flat[prefix + key] = value
    return flat


def _unknown_variables(environ: Mapping[str, str]) -> list[str]:
    variables = {setting.env_variable for setting in SETTINGS} | OTHER_VARIABLES
    unknown = sorted(name for name in environ if name.startswith(_VARIABLE_PREFIX) and name not in variables)
    return [f"{printable_name(name)} is not a setting{_variable_hint(name, variables)}" for name in unknown]


def _origin(source: str, home: Path) -> str:
    return str(home / CONFIG_FILE) if source == CONFIG_FILE else source.removeprefix("environment ")


def _absolute_folders(
    values: Mapping[str, SettingValue], sources: Mapping[str, str], home: Path
) -> dict[str, SettingValue]:
    """The settings that list folders, with absolute paths, all of them outside the home."""
    lists = {setting.name: values[setting.name] for setting in SETTINGS if setting.kind is SettingKind.FOLDERS}
    return {
        name: tuple(check_folder(folder, home, f"{_origin(sources[name], home)}: {name}") for folder in folders)
        for name, folders in lists.items()
        if isinstance(folders, tuple) and folders
    }


def _variable_hint(name: str, variables: set[str]) -> str:
    if name == f"{_VARIABLE_PREFIX}{RULES_KEY.upper()}":
        return f"; rules can only be set in {CONFIG_FILE}"
    by_suffix = {variable.removeprefix(_VARIABLE_PREFIX): variable for variable in variables}
    by_suffix |= {setting.name.replace(".", "_").upper(): setting.env_variable for setting in SETTINGS}
    match = closest_match(name.removeprefix(_VARIABLE_PREFIX), by_suffix)
    return f"; did you mean {by_suffix[match]}?" if match else ""


def _resolve_secrets(
    values: Mapping[str, SettingValue],
    sources: Mapping[str, str],
    path: Path,
    environ: Mapping[str, str],
    warnings: list[str],
) -> tuple[dict[str, Secret], dict[str, str]]:
    secrets: dict[str, Secret] = {}
    references: dict[str, str] = {}
    for setting in SETTINGS:
        if not setting.is_secret:
            continue
        text, source = str(values[setting.name] or ""), sources.get(setting.name, "default")
        secrets[setting.name] = Secret("")
        if text:
            references[setting.name] = secret_reference(text) or source
            secrets[setting.name] = resolve_secret(setting.name, text, environ, path if source == CONFIG_FILE else None)
            if not secrets[setting.name]:
                warnings.append(f"{setting.name}: {secret_reference(text)} is not set in the environment")
    return secrets, references


_MODEL_SPECIFIC_KEYS = ("url", "key", "window", "longest", "price_input", "price_output", "price_cached")


def _model_by_setting(layers: tuple[_Layer, ...]) -> dict[str, str]:
    """The model that each such setting belongs to: a key in the file is not for a model named by a flag."""
    names = [str(layer["model.name"][0]) if "model.name" in layer else "" for layer in layers]
    main = next((name for name in names if name), "")
    models: dict[str, str] = {}
    for name in (f"model.{key}" for key in _MODEL_SPECIFIC_KEYS):
        depth = next((depth for depth, layer in enumerate(layers) if name in layer), None)
        if depth is not None:
            models[name] = next((name for name in names[depth:] if name), main)
    return models
