"""The value of a setting: its type and limits, how it is parsed from TOML and from text, and how it is rendered.

Pure: nothing here reads a file or the environment.
"""

from enum import Enum

from msgspec import Struct

from outrider.core.errors import Refused

SettingValue = str | int | float | bool | tuple[str, ...] | None


class SettingKind(Enum):
    """The type of a setting's value; its value is the wording used in errors and in the reference."""

    TEXT = "text"
    URL = "an http:// or https:// URL without a user name or password"
    INTEGER = "a whole number"
    NUMBER = "a number"
    BOOLEAN = "true or false"
    NAMES = "a list of names"
    FOLDERS = "a list of folders, each beginning with / or ~"
    SECRET = "env:NAME, file:PATH, or the secret itself"


class Setting(Struct, frozen=True):
    """One setting, as derived from a field of its section."""

    name: str
    """Dotted: section and key, e.g. `limits.steps`."""
    kind: SettingKind
    default: SettingValue
    description: str
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    alias: str = ""
    """A shorter name for the same setting."""

    @property
    def category(self) -> str:
        return self.name.partition(".")[0]

    @property
    def key(self) -> str:
        return self.name.partition(".")[2]

    @property
    def is_secret(self) -> bool:
        return self.kind is SettingKind.SECRET

    @property
    def env_variable(self) -> str:
        return "OUTRIDER_" + (self.alias or self.name).replace(".", "_").upper()

    @property
    def allowed_text(self) -> str:
        """The allowed values in words, for errors and the reference."""
        if self.choices:
            *others, last = (choice or '""' for choice in self.choices)
            return f"{', '.join(others)} or {last}"
        if self.minimum is None:
            return self.kind.value
        if self.maximum is None:
            return f"{self.kind.value}, at least {self.minimum:g}"
        return f"{self.kind.value} from {_format_number(self.minimum)} to {_format_number(self.maximum)}"


_MAX_NUMBER = 1e300
"""Larger than any sensible value; also excludes infinity and NaN."""
_BOOLEANS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def parse_text(setting: Setting, text: str, where: str) -> SettingValue:
    """Parse a value from a variable, a flag or a command. A secret stays a reference.

    `where`, unless empty, precedes the error.
    """
    text = text.strip()
    value: object = text
    try:
        text.encode()
        match setting.kind:
            case SettingKind.INTEGER:
                value = int(text)
            case SettingKind.NUMBER:
                value = float(text)
            case SettingKind.BOOLEAN:
                value = _BOOLEANS[text.lower()]
            case SettingKind.NAMES | SettingKind.FOLDERS:
                value = [part.strip() for part in text.split(",") if part.strip()]
            case SettingKind.TEXT | SettingKind.URL | SettingKind.SECRET:
                pass
    except (ValueError, KeyError):
        raise _invalid_value(setting, text, where) from None
    return parse_value(setting, value, where)


def parse_value(setting: Setting, value: object, where: str) -> SettingValue:
    """Check a typed value, as TOML has them. Raises Refused with the allowed values."""
    parsed = _coerce(setting.kind, value)
    if parsed is None:
        raise _invalid_value(setting, value, where)
    if isinstance(parsed, str) and setting.choices and parsed not in setting.choices:
        raise _invalid_value(setting, parsed, where)
    if isinstance(parsed, int | float) and not (
        (setting.minimum is None or parsed >= setting.minimum)
        and (setting.maximum is None or parsed <= setting.maximum)
    ):
        raise _invalid_value(setting, parsed, where)
    return parsed


def _coerce(kind: SettingKind, value: object) -> SettingValue:
    match kind, value:
        case (SettingKind.BOOLEAN, bool()):
            return value
        case (SettingKind.INTEGER | SettingKind.NUMBER, bool()):
            return None
        case (SettingKind.INTEGER, int()):
            return value
        case (SettingKind.NUMBER, int() | float()):
            return float(value) if -_MAX_NUMBER < value < _MAX_NUMBER else None
        case (_, str()) if not value.strip().isprintable():
            return None
        case (SettingKind.TEXT | SettingKind.SECRET, str()):
            return value.strip()
        case (SettingKind.URL, str()):
            return _parse_url(value.strip())
        case (SettingKind.NAMES, list()):
            return _parse_names(value)  # pyright: ignore[reportUnknownArgumentType]
        case (SettingKind.FOLDERS, list()):
            names = _parse_names(value)  # pyright: ignore[reportUnknownArgumentType]
            return names if all(name.startswith(("/", "~")) for name in names or ()) else None
        case _:
            return None


def _parse_names(value: list[object]) -> tuple[str, ...] | None:
    names = tuple(
        item.strip() for item in value if isinstance(item, str) and item.strip().isprintable() and item.strip()
    )
    return names if len(names) == len(value) else None


def _parse_url(text: str) -> str | None:
    scheme, mark, rest = text.partition("://")
    host = rest.partition("/")[0]
    if not text:
        return ""
    if scheme.lower() not in ("http", "https") or not mark or not host or "@" in host or any(c.isspace() for c in text):
        return None
    return text.rstrip("/")


def _invalid_value(setting: Setting, value: object, where: str) -> Refused:
    name = f"{where}: {setting.name}" if where else setting.name
    if setting.is_secret or setting.kind is SettingKind.URL:  # A URL may contain a password.
        return Refused(f"{name} is not valid; allowed: {setting.allowed_text}")
    return Refused(f"{name} = {quote_value(value)} is not valid; allowed: {setting.allowed_text}")


def quote_value(value: object) -> str:
    """A value for an error message, clipped."""
    if isinstance(value, int) and abs(value) > _MAX_NUMBER:
        return "this number"
    text = repr(value)
    return text if len(text) <= 60 else text[:59] + "…"


def _format_number(number: float | None) -> str:
    if number is None:
        return ""
    return f"{int(number):,}" if number == int(number) else f"{number:g}"


def render_value(value: SettingValue) -> str:
    """A value as it is written on the command line."""
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case float():
            return f"{value:.15g}"
        case tuple():
            return ", ".join(value)
        case _:
            return str(value)
