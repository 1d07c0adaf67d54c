"""Editor of config.toml: changes one setting and keeps everything else, comments and order included.

A change is written only when the new file, read back, contains exactly the intended settings. A file that cannot be
changed safely is left untouched and refused.
"""

import os
import re
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from outrider.config.environment import check_folder
from outrider.config.load import flatten, parse_toml, read_file
from outrider.config.models import parse_model_name
from outrider.config.schema import CONFIG_FILE, RULES_KEY, find_setting, lookup_setting
from outrider.config.secrets import check_reference
from outrider.config.setting_values import Setting, SettingKind, SettingValue, parse_text
from outrider.core.errors import Refused
from outrider.system.files import write_atomic

if TYPE_CHECKING:
    from tomlkit import TOMLDocument
    from tomlkit.items import Item

_RULES_HEADER = re.compile(rf"(?m)^[ \t]*\[\[[ \t]*{RULES_KEY}[ \t]*\]\]")


def set_value(home: Path, name: str, text: str, note: str = "") -> Path:
    """Check a value and save it; returns the file. Raises Refused, and changes nothing, when the value is not allowed.

    `note` becomes the comment behind the value and replaces an earlier one.
    """
    setting, path = find_setting(name), home / CONFIG_FILE
    value = parse_text(setting, text, "")
    before = read_file(path)
    tables = parse_toml(before, path)
    _check(setting, value, tables, home)
    if setting.alias != setting.category and isinstance(tables.get(setting.category), str):
        # `model = "x"` is short for model.name, and nothing else can be set beside it.
        before = re.sub(rf"(?m)^([ \t]*{setting.category})(?=[ \t]*=)", r"\1.name", before, count=1)
    saved = list(value) if isinstance(value, tuple) else value

    def change(document: "TOMLDocument") -> None:
        if entry := _locate(document, setting.name):
            table, key = entry
            table[key] = saved
        else:
            _add(document, setting, saved)
        if note and (entry := _locate(document, setting.name)):
            table, key = entry
            cast("Item", table[key]).comment(note)

    _edit(path, before, change, {**_flat_settings(tables), setting.name: saved}, setting.name)
    return path


def unset_value(home: Path, name: str) -> bool:
    """Remove a setting, or an unknown key, from the file; False when it is not there."""
    path, name = home / CONFIG_FILE, _canonical(name)
    before = read_file(path)
    settings = _flat_settings(parse_toml(before, path))
    if name not in settings or name == RULES_KEY:
        find_setting(name)
        return False

    def change(document: "TOMLDocument") -> None:
        table, key = _locate(document, name) or (document, name)
        del table[key]

    _edit(path, before, change, {key: value for key, value in settings.items() if key != name}, name)
    return True


def read_with_comment(home: Path, name: str) -> tuple[object, str]:
    """The value of a setting in the file and the comment behind it; None and "" when it is not there."""
    path = home / CONFIG_FILE
    text = read_file(path)
    value = _flat_settings(parse_toml(text, path)).get(name)
    if value is None:
        return None, ""
    import tomlkit  # Slow to import, and most commands only read.

    table, key = _locate(tomlkit.parse(text), name) or ({}, name)
    return value, cast("Item", table[key]).trivia.comment.lstrip("# ")


def _check(setting: Setting, value: SettingValue, tables: dict[str, Any], home: Path) -> None:
    if setting.is_secret:
        check_reference(setting.name, str(value))
    if setting.name == "model.name" and value:
        parse_model_name(str(value), has_url=bool(_flat_settings(tables).get("model.url")))
    if setting.name == "model.fallbacks" and isinstance(value, tuple):
        for name in value:
            parse_model_name(name)
    if setting.kind is SettingKind.FOLDERS and isinstance(value, tuple):
        for folder in value:
            check_folder(folder, home, setting.name)


def _flat_settings(tables: dict[str, Any]) -> dict[str, object]:
    return {_canonical(name): value for name, value in flatten(tables).items()}


def _canonical(name: str) -> str:
    setting = lookup_setting(name)
    return setting.name if setting else name


_Table = MutableMapping[str, Any]


def _locate(table: _Table, name: str, prefix: str = "") -> tuple[_Table, str] | None:
    """The table and the key that set this name."""
    for key, item in table.items():
        if isinstance(item, dict):
            if entry := _locate(cast("_Table", item), name, f"{prefix}{key}."):
                return entry
        elif _canonical(prefix + key) == name:
            return table, key
    return None


def _add(document: "TOMLDocument", setting: Setting, value: object) -> None:
    """Add a setting that the file does not have, behind the last key of its table."""
    import tomlkit
    from tomlkit.items import Table

    if setting.category not in document:
        document[setting.category] = tomlkit.table()
    table = document[setting.category]
    if not isinstance(table, dict):
        raise TypeError(f"{setting.category} is not a table")
    body: list[Any] = table.value.body if isinstance(table, Table) else []
    trailing: list[Any] = []  # A comment above the next header counts as the end of this table: keep it there.
    while body and body[-1][0] is None:
        trailing.insert(0, body.pop())
    cast("_Table", table)[setting.key] = value
    body.extend(trailing)


def _edit(
    path: Path, before: str, change: "Callable[[TOMLDocument], None]", expected: dict[str, object], name: str
) -> None:
    """Change the file, provided that the outcome is exactly these settings and everything else keeps its place."""
    import tomllib

    import tomlkit

    newline = "\r\n" if "\r\n" in before else "\n"
    text = before.replace("\r\n", "\n")
    has_mixed_newlines = text.replace("\n", newline) != before
    text += "\n" if text and not text.endswith("\n") else ""
    headers: list[str] = []

    def number(header: re.Match[str]) -> str:
        headers.append(header[0])
        return f"[{RULES_KEY}-{len(headers)}]"

    # tomlkit gathers all [[rules]] in one place. Under distinct names, each of them stays where it is.
    text = _RULES_HEADER.sub(number, text)
    try:
        document = tomlkit.parse(text)
        is_faithful = tomlkit.dumps(document) == text and not has_mixed_newlines
        change(document)
        after = tomlkit.dumps(document)
        for count, header in enumerate(headers, 1):
            after = after.replace(f"[{RULES_KEY}-{count}]", header, 1)
        is_expected = _flat_settings(tomllib.loads(after)) == expected
    except (ValueError, KeyError, TypeError, RecursionError):  # tomlkit's own errors are among these.
        is_faithful, is_expected, after = False, False, ""
    if not (is_faithful and is_expected):
        raise Refused(f"{path}: {name} is written in a form that cannot be changed safely; edit the file by hand")
    _save(path, after.replace("\n", newline))


def _save(path: Path, text: str) -> None:
    """Replace the file atomically and durably, readable by its owner only; a symbolic link stays one."""
    target = Path(os.path.realpath(path))
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomic(target, text.encode())
    except OSError as error:
        raise Refused(f"{path}: cannot be written: {error.strerror}") from None
