"""Changes one setting in config.toml and leaves every other byte of it, comments and order included, as it was."""

import json
import os
import re
from pathlib import Path
from typing import Any, cast

from msgspec import Struct

from outrider.config.environment import check_folder
from outrider.config.load import flatten, parse_toml, read_file
from outrider.config.models import parse_model_name
from outrider.config.schema import (
    CONFIG_FILE,
    RULES_KEY,
    Setting,
    SettingKind,
    SettingValue,
    find_setting,
    lookup_setting,
    parse_text,
)
from outrider.config.secrets import check_reference
from outrider.core.errors import Refused


class _Statement(Struct, frozen=True):
    """One statement of the file: a table's header, an assignment, or a blank or comment line."""

    text: str
    table: str
    """The table it stands in or opens, with a trailing dot; empty at the top."""
    sets: tuple[str, ...] = ()
    """The settings it assigns, by dotted name."""
    is_header: bool = False


def set_value(home: Path, name: str, text: str, note: str = "") -> Path:
    """Check the value and write it down; returns the file. Raises Refused and changes nothing when it will not do.

    `note` stands behind it as a comment, in place of one that was there.
    """
    setting, path = find_setting(name), home / CONFIG_FILE
    value = parse_text(setting, text, "")
    before = read_file(path)
    tables = parse_toml(before, path)
    _check(setting, value, tables, home)
    after = _with_value(_split_statements(before), setting, value, path)
    if note:
        after = _with_comment(_split_statements(after), setting.name, value, note)
    _save(path, after, {**_flat_settings(tables), setting.name: _to_toml(value)})
    return path


def read_with_comment(home: Path, name: str) -> tuple[object, str]:
    """What the file sets this to, and the comment behind it; None and nothing when it does not."""
    lines = _split_statements(read_file(home / CONFIG_FILE))
    at = _find_statement(lines, name)
    if at is None:
        return None, ""
    (value,) = flatten(_try_parse(lines[at].text) or {}).values()
    return value, _comment(lines[at].text).lstrip("# ")


def unset_value(home: Path, name: str) -> bool:
    """Remove it from the file; False when it is not in there. A name that is no setting may be removed as well."""
    path = home / CONFIG_FILE
    setting = lookup_setting(name)
    name = setting.name if setting else name
    before = read_file(path)
    settings = _flat_settings(parse_toml(before, path))
    if name not in settings or name == RULES_KEY:
        find_setting(name)
        return False
    lines = _split_statements(before)
    at = _find_statement(lines, name)
    if at is None:
        raise _not_editable(path, name)
    _save(path, "".join(line.text for line in lines[:at] + lines[at + 1 :]), _without(settings, name))
    return True


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


def _without(settings: dict[str, object], name: str) -> dict[str, object]:
    return {other: value for other, value in settings.items() if other != name}


def _split_statements(text: str) -> list[_Statement]:
    """The file by statements. One that spans lines is found by parsing until it is whole."""
    raw, lines, table, at = re.findall(r"[^\n]*\n|[^\n]+", text), list[_Statement](), "", 0
    while at < len(raw):
        here = raw[at].strip()
        if here.startswith("[") and (opened := _table_of_header(raw[at])) is not None:
            table = opened
            lines.append(_Statement(raw[at], table, is_header=True))
            at += 1
            continue
        end = at + 1
        while (parsed := _try_parse("".join(raw[at:end]))) is None and end < len(raw):
            end += 1
        sets = tuple(_canonical(table + name) for name in flatten(parsed or {}))
        lines.append(_Statement("".join(raw[at:end]), table, sets))
        at = end
    return lines


def _table_of_header(line: str) -> str | None:
    inner: Any = _try_parse(line)
    path = ""
    while isinstance(inner, dict) and inner:
        key, inner = cast("tuple[str, Any]", next(iter(inner.items())))  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
        path += f"{key}."
    return path or None


def _try_parse(text: str) -> dict[str, Any] | None:
    import tomllib

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None


def _find_statement(lines: list[_Statement], name: str) -> int | None:
    """The statement that sets this and nothing else."""
    return next((at for at, line in enumerate(lines) if line.sets == (name,)), None)


def _with_value(lines: list[_Statement], setting: Setting, value: SettingValue, path: Path) -> str:
    """The file's new text."""
    texts, end = [line.text for line in lines], "\r\n" if any("\r\n" in line.text for line in lines) else "\n"
    if texts and not texts[-1].endswith("\n"):
        texts[-1] += end
    at = _find_statement(lines, setting.name)
    if at is not None:
        texts[at] = _replace_value(lines[at].text, value, end)
        return "".join(texts)
    if any(setting.name in line.sets for line in lines):
        raise _not_editable(path, setting.name)
    section = f"{setting.category}."
    inside = [at for at, line in enumerate(lines) if line.table == section and (line.sets or line.is_header)]
    dotted = [at for at, line in enumerate(lines) if not line.table and any(s.startswith(section) for s in line.sets)]
    if inside:
        texts.insert(inside[-1] + 1, f"{setting.key} = {_render(value)}{end}")
    elif dotted:
        last = dotted[-1]
        key, _, rest = texts[last].partition("=")
        if key.strip() == setting.category:  # `model = "x"` is short for model.name; a table can not stand beside it.
            texts[last] = f"{key.replace(setting.category, setting.category + '.name', 1)}={rest}"
        texts.insert(last + 1, f"{setting.name} = {_render(value)}{end}")
    else:
        gap = end if texts else ""
        texts.append(f"{gap}[{setting.category}]{end}{setting.key} = {_render(value)}{end}")
    return "".join(texts)


def _replace_value(statement: str, value: SettingValue, end: str) -> str:
    """The statement with another value, its key and its comment kept."""
    key, _, _ = statement.partition("=")
    comment = _comment(statement)
    return f"{key.rstrip()} = {_render(value)}{f'  {comment}' if comment else ''}{end}"


def _with_comment(lines: list[_Statement], name: str, value: SettingValue, note: str) -> str:
    texts = [line.text for line in lines]
    at = _find_statement(lines, name)
    if at is not None:
        key, _, rest = texts[at].partition("=")
        end = "\r\n" if rest.endswith("\r\n") else "\n"
        texts[at] = f"{key.rstrip()} = {_render(value)}  # {note}{end}"
    return "".join(texts)


def _comment(statement: str) -> str:
    meant = _try_parse(statement)
    marks = [at for at, letter in enumerate(statement) if letter == "#"]
    return next((statement[at:] for at in marks if _try_parse(statement[:at]) == meant), "").strip()


def _render(value: SettingValue) -> str:
    match value:
        case tuple():
            return f"[{', '.join(_render(item) for item in value)}]"
        case bool():
            return "true" if value else "false"
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case _:
            return repr(value)


def _to_toml(value: SettingValue) -> object:
    return list(value) if isinstance(value, tuple) else value


def _save(path: Path, text: str, expected: dict[str, object]) -> None:
    """Write it if it says just what was meant: atomically, durably, and for its owner alone."""
    outcome = _try_parse(text)
    if outcome is None or _flat_settings(outcome) != expected:
        raise _not_editable(path, "this setting")
    target = Path(os.path.realpath(path))
    fresh = target.with_name(f"{target.name}.{os.getpid()}.new")
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh.unlink(missing_ok=True)
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, target)
        _sync_folder(target.parent)
    except OSError as error:
        raise Refused(f"{path}: cannot be written: {error.strerror}") from None


def _sync_folder(folder: Path) -> None:
    if os.name == "posix":  # Elsewhere a folder can not be opened.
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _not_editable(path: Path, name: str) -> Refused:
    return Refused(f"{path}: {name} stands in a form that is not safe to change here; edit the file by hand")
