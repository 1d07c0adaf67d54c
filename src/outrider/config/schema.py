"""The schema of config.toml: every setting declared once, with its type, default, limits and help text.

Loading, environment variables, `outrider config`, validation and the reference page are all derived from these
declarations. Pure: nothing here reads a file or the environment. It is long because every setting is in it.
"""

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
from msgspec import Meta, Struct

from outrider.config.secrets import Secret
from outrider.core.approvals import Rule
from outrider.core.errors import Refused
from outrider.core.text import closest_match
from outrider.core.types import REMOTE

CONFIG_FILE = "config.toml"
RULES_KEY = "rules"
"""The key of the approval rules in config.toml: an array of tables, not a setting."""
RULES_DESCRIPTION = "Approval rules: which calls to allow, ask about or deny."
OTHER_VARIABLES = frozenset({"OUTRIDER_HOME", "OUTRIDER_FAIL", "OUTRIDER_API_KEY"})
"""Environment variables of Outrider that are not settings."""
OWN_KEY_VARIABLES = frozenset({"OUTRIDER_API_KEY"})
"""Those of them that hold a secret."""

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


class Section(Struct, frozen=True):
    """One table of config.toml. Each field is a setting: its key, type, default, and a `Meta` with help and limits."""


Url = Annotated[str, SettingKind.URL]
Folders = Annotated[tuple[str, ...], SettingKind.FOLDERS]
"""Absolute paths, once loaded."""


class ModelSettings(Section, frozen=True):
    name: Annotated[
        str,
        Meta(
            description="The model to use: <provider>:<model>, <wire>:<model>, or practice.", extra={"alias": "model"}
        ),
    ] = ""
    url: Annotated[Url, Meta(description="Base URL of the model server.")] = ""
    key: Annotated[Secret, Meta(description="API key of the model: env:NAME, file:PATH, or the key itself.")] = Secret(
        ""
    )
    fallbacks: Annotated[
        tuple[str, ...], Meta(description="Models to try, in this order, when the first one is unavailable.")
    ] = ()
    window: Annotated[int, Meta(description="Context window of the model in tokens; 0 if unknown.", ge=0)] = 0
    longest: Annotated[int, Meta(description="Maximum tokens in one reply; 0 for the provider's default.", ge=0)] = 0
    effort: Annotated[
        Literal["", "low", "medium", "high"], Meta(description="Reasoning effort; empty for the model's default.")
    ] = ""
    patience: Annotated[
        float, Meta(description="Seconds without any data before a request times out.", ge=0.1, le=3600)
    ] = 120.0
    attempts: Annotated[int, Meta(description="Maximum attempts for one request.", ge=1, le=20)] = 5
    price_input: Annotated[float | None, Meta(description="US dollars per million input tokens.", ge=0)] = None
    price_output: Annotated[float | None, Meta(description="US dollars per million output tokens.", ge=0)] = None
    price_cached: Annotated[float | None, Meta(description="US dollars per million cached input tokens.", ge=0)] = None


class LimitSettings(Section, frozen=True):
    steps: Annotated[int, Meta(description="Maximum steps in one turn.", ge=1, le=10_000)] = 60
    repeats: Annotated[int, Meta(description="Maximum number of identical calls in a row.", ge=1, le=100)] = 3
    seconds: Annotated[int, Meta(description="Maximum duration of one turn in seconds.", ge=1, le=604_800)] = 3600
    spend: Annotated[
        float,
        Meta(description="Maximum cost of one turn in US dollars, if prices are known; 0 for no limit.", ge=0),
    ] = 5.0
    queue: Annotated[int, Meta(description="Maximum number of waiting inputs in one session.", ge=1, le=10_000)] = 20
    input: Annotated[int, Meta(description="Maximum length of one message in characters.", ge=1, le=100_000_000)] = (
        1_000_000
    )
    turns: Annotated[int, Meta(description="Maximum number of turns running at once.", ge=1, le=1_000)] = 8


class RuntimeSettings(Section, frozen=True):
    name: Annotated[
        str,
        Meta(
            description="The runtime that runs turns: native, codex, acp, remote, or one from a plugin.",
            extra={"alias": "runtime"},
        ),
    ] = "native"


class CodexSettings(Section, frozen=True):
    command: Annotated[
        str,
        Meta(description="Path of the codex program; empty to use the one on PATH or the one installed with pip."),
    ] = ""
    home: Annotated[str, Meta(description="Codex's home folder; empty for your own (CODEX_HOME, or ~/.codex).")] = ""
    model: Annotated[str, Meta(description="The model Codex uses; empty for the one in Codex's own settings.")] = ""
    sandbox: Annotated[
        Literal["read-only", "workspace-write", "danger-full-access"],
        Meta(description="What commands run by Codex may access without an approval."),
    ] = "workspace-write"
    approval: Annotated[
        Literal["on-request", "untrusted", "never"],
        Meta(description="When Codex requests approval: to leave its sandbox, for almost everything, or never."),
    ] = "on-request"
    tools: Annotated[
        Literal["auto", "dynamic", "mcp"],
        Meta(
            description="How Codex gets Outrider's tools: as dynamic tools, over MCP on loopback, "
            "or (auto) over MCP if it does not support dynamic tools."
        ),
    ] = "auto"
    seconds: Annotated[
        int, Meta(description="Seconds Codex may work on one turn, not counting waits.", ge=1, le=604_800)
    ] = 600
    quiet: Annotated[
        int,
        Meta(description="Seconds of silence after a tool call before Codex is checked for a hang.", ge=1, le=86_400),
    ] = 90
    env: Annotated[
        tuple[str, ...],
        Meta(description="Additional environment variables to pass to Codex, e.g. for its model's key."),
    ] = ()


class AcpSettings(Section, frozen=True):
    command: Annotated[str, Meta(description="Command line of the ACP agent: a program and its arguments.")] = ""
    env: Annotated[
        tuple[str, ...],
        Meta(description="Additional environment variables to pass to the agent, e.g. for its model's key."),
    ] = ()
    start: Annotated[
        int, Meta(description="Seconds the agent may take to start, and to open a session.", ge=30, le=3600)
    ] = 60
    quiet: Annotated[
        int, Meta(description="Seconds of silence before the agent is checked for a hang.", ge=1, le=86_400)
    ] = 600


class RemoteSettings(Section, frozen=True):
    url: Annotated[
        Url,
        Meta(description="Base URL of another agent to which every turn is forwarded; empty to run turns here."),
    ] = ""
    key: Annotated[
        Secret, Meta(description="API key of that agent: env:NAME, file:PATH, or the key itself; empty to send none.")
    ] = Secret("")
    model: Annotated[
        str, Meta(description="The model to request from a chat completions server; empty for the first it lists.")
    ] = ""
    api: Annotated[
        Literal["auto", "sessions", "chat"],
        Meta(
            description="The API to use: the sessions of another Outrider, chat completions, "
            "or (auto) the sessions where the agent is an Outrider."
        ),
    ] = "auto"
    patience: Annotated[
        float, Meta(description="Seconds without any data before the connection is given up.", ge=0.1, le=3600)
    ] = 120.0
    poll: Annotated[
        float,
        Meta(
            description="Seconds between two checks for news of another Outrider's background tasks, while some run.",
            ge=0.1,
            le=3600,
        ),
    ] = 10.0


class ShellSettings(Section, frozen=True):
    timeout: Annotated[
        int, Meta(description="Seconds to wait for a command before it becomes a background task.", ge=1, le=600)
    ] = 30
    ceiling: Annotated[int, Meta(description="Seconds after which a command is killed.", ge=1, le=2_592_000)] = 86_400
    output: Annotated[
        int,
        Meta(
            description="Maximum output of one command in bytes; a command that writes more is killed.",
            ge=4096,
            le=10 * 1024**3,
        ),
    ] = 50 * 1024 * 1024
    tasks: Annotated[int, Meta(description="Maximum number of open tasks in one session.", ge=1, le=5_000)] = 50


class SandboxSettings(Section, frozen=True):
    mode: Annotated[
        Literal["auto", "required", "bubblewrap", "landlock", "off"],
        Meta(
            description="auto uses bubblewrap, else Landlock, and asks before every command where neither works; "
            "required refuses commands there; bubblewrap and landlock require that one; off runs commands without a "
            "sandbox and without asking."
        ),
    ] = "auto"
    read: Annotated[Folders, Meta(description="Folders that commands may read in addition to system folders.")] = ()
    network: Annotated[bool, Meta(description="Allow commands to use the network without an approval.")] = False
    processes: Annotated[int, Meta(description="Maximum number of processes of one command.", ge=16, le=100_000)] = 512
    memory: Annotated[int, Meta(description="Maximum memory of one command in MiB.", ge=64, le=1_048_576)] = 2048
    cpu: Annotated[
        int,
        Meta(
            description="Maximum processor time of one command in seconds, all its processes together.",
            ge=1,
            le=100_000_000,
        ),
    ] = 86_400
    reserve: Annotated[
        int,
        Meta(
            description="Disk space in MiB to keep free, but at most a tenth of the disk; with less, no command "
            "starts, and the one that has written most is killed.",
            ge=0,
            le=1_048_576,
        ),
    ] = 512
    file: Annotated[
        int, Meta(description="Maximum size of a file written by a command in MiB.", ge=1, le=1_048_576)
    ] = 10_240


class DelegateSettings(Section, frozen=True):
    depth: Annotated[
        int, Meta(description="Maximum nesting depth of child sessions; 0 to disable delegation.", ge=0, le=10)
    ] = 2
    children: Annotated[
        int, Meta(description="Maximum number of child sessions running at once in one session.", ge=1, le=100)
    ] = 5


class QuestionSettings(Section, frozen=True):
    seconds: Annotated[
        int,
        Meta(
            description="Seconds after which an unanswered question counts as a no; 0 to wait indefinitely.",
            ge=0,
            le=2_592_000,
        ),
    ] = 0


class ChatSettings(Section, frozen=True):
    markdown: Annotated[bool, Meta(description="Render replies as Markdown in the terminal chat.")] = True
    history: Annotated[bool, Meta(description="Keep a history of what you type in the terminal chat.")] = True


class HttpSettings(Section, frozen=True):
    host: Annotated[
        str,
        Meta(
            description="The address `outrider up` listens on; any address but loopback must also be given with --host."
        ),
    ] = "127.0.0.1"
    port: Annotated[
        int, Meta(description="The port `outrider up` listens on; 0 to choose a free one.", ge=0, le=65_535)
    ] = 8642
    names: Annotated[
        tuple[str, ...], Meta(description="Additional host names that clients may use to reach the server.")
    ] = ()


class WebhookSettings(Section, frozen=True):
    url: Annotated[Url, Meta(description="URL to notify when a background response has ended; empty for none.")] = ""
    secret: Annotated[
        Secret,
        Meta(
            description="Signing secret for webhooks: whsec_ and 24 to 64 bytes in base64; "
            "generated when first needed if not set."
        ),
    ] = Secret("")


class LogSettings(Section, frozen=True):
    level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="Minimum level of log records.")
    ] = "info"


class Config(Struct, frozen=True):
    """The loaded configuration, and the source of each value."""

    home: Path
    model: ModelSettings
    limits: LimitSettings
    runtime: RuntimeSettings
    codex: CodexSettings
    acp: AcpSettings
    remote: RemoteSettings
    shell: ShellSettings
    sandbox: SandboxSettings
    delegate: DelegateSettings
    asks: QuestionSettings
    chat: ChatSettings
    http: HttpSettings
    webhook: WebhookSettings
    log: LogSettings
    sources: Mapping[str, str]
    references: Mapping[str, str]
    """Where each configured secret comes from, by setting."""
    model_by_setting: Mapping[str, str]
    """For `model.url` and other settings that belong to one model: the model name configured beside them."""
    keys: Mapping[str, Secret]
    """API keys in the environment, of providers and of Outrider, by variable."""
    rules: tuple[Rule, ...] = ()
    """Approval rules, in the order of the file."""
    warnings: tuple[str, ...] = ()

    @property
    def default_runtime(self) -> str:
        """The runtime of sessions that do not choose one: with `remote.url`, the other agent, whatever is chosen."""
        return REMOTE if self.remote.url else self.runtime.name

    def source(self, name: str) -> str:
        """`default`, `config.toml`, `environment OUTRIDER_…` or `flag`."""
        return self.sources.get(find_setting(name).name, "default")

    def value(self, name: str) -> SettingValue | Secret:
        setting = find_setting(name)
        return getattr(getattr(self, setting.category), setting.key)

    def display_value(self, name: str) -> str:
        """The value for display; for a secret, only whether it is set and where it comes from."""
        value, reference = self.value(name), self.references.get(find_setting(name).name)
        if not isinstance(value, Secret):
            return render_value(value)
        return f"{'set' if value else 'not set'} (from {reference})" if reference else "not set"


_KINDS: dict[Any, SettingKind] = {
    str: SettingKind.TEXT,
    int: SettingKind.INTEGER,
    float: SettingKind.NUMBER,
    bool: SettingKind.BOOLEAN,
    tuple[str, ...]: SettingKind.NAMES,
    Secret: SettingKind.SECRET,
}


def read_section(name: str, section: type[Section]) -> Iterator[Setting]:
    """The settings that the fields of a section declare. Raises TypeError for a field that declares none."""
    for key, default in zip(section.__struct_fields__, section.__struct_defaults__, strict=True):
        field, *metadata = get_args(section.__annotations__[key]) or (None,)
        meta = next((item for item in metadata if isinstance(item, Meta)), Meta())
        if get_origin(field) is UnionType:
            (field,) = (part for part in get_args(field) if part is not NoneType)
        choices: tuple[str, ...] = get_args(field) if get_origin(field) is Literal else ()
        kind = next((item for item in metadata if isinstance(item, SettingKind)), None)
        kind = kind or _KINDS.get(str if choices else field)
        if kind is None or not meta.description:
            raise TypeError(f"{name}.{key}: a setting needs Annotated[type, Meta(description=…)] with a known type")
        yield Setting(
            name=f"{name}.{key}",
            kind=kind,
            default="" if isinstance(default, Secret) else default,
            description=meta.description,
            choices=choices,
            minimum=meta.ge,
            maximum=meta.le,
            alias=(meta.extra or {}).get("alias", ""),
        )


_SECTIONS: dict[str, type[Section]] = {
    name: section
    for name, section in Config.__annotations__.items()
    if isinstance(section, type) and issubclass(section, Section)
}
SETTINGS = tuple(setting for name, section in _SECTIONS.items() for setting in read_section(name, section))
"""All settings, in the order of the sections in `Config` and of the fields in each section."""
_SETTINGS_BY_NAME = {name: setting for setting in SETTINGS for name in (setting.name, setting.alias) if name}


def build_sections(values: Mapping[str, SettingValue | Secret]) -> dict[str, Any]:
    """The sections of `Config`, by field, from values by setting name."""
    return {
        name: section(**{key: values[f"{name}.{key}"] for key in section.__struct_fields__})
        for name, section in _SECTIONS.items()
    }


_MAX_NUMBER = 1e300
"""Larger than any sensible value; also excludes infinity and NaN."""
_BOOLEANS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def find_setting(name: str) -> Setting:
    """The setting with this name or alias. Raises Refused with the closest match."""
    if setting := _SETTINGS_BY_NAME.get(name):
        return setting
    if name == RULES_KEY:
        raise Refused("rules cannot be set one by one: write each one under [[rules]] in config.toml")
    raise unknown_setting(name)


def lookup_setting(name: str) -> Setting | None:
    return _SETTINGS_BY_NAME.get(name)


def unknown_setting(name: str) -> Refused:
    suggestion = did_you_mean(name, (*_SETTINGS_BY_NAME, RULES_KEY))
    return Refused(f"there is no setting {printable_name(name)}{suggestion}")


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """`; did you mean …?`, or an empty string when no name is close."""
    match = closest_match(word, names)
    return f"; did you mean {match}?" if match else ""


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


def printable_name(name: str) -> str:
    """A name, quoted and clipped unless it is short and printable."""
    return name if name.isprintable() and len(name) <= 60 else repr(name[:60])


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


class SettingReport(Struct, frozen=True):
    """One setting with its current value, as `config list --json` and the HTTP API return it."""

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
