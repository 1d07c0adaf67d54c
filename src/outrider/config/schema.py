"""The one registry of what people may set: names, kinds, defaults and what is allowed. Pure; reads nothing.

Every setting as it may be shown: its value, where that came from, what it is for. Secrets are masked.
"""

from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from outrider.config.secrets import Secret
from outrider.core.approvals import Rule
from outrider.core.errors import Refused

SettingValue = str | int | float | bool | tuple[str, ...] | None


class SettingKind(Enum):
    """What a setting holds, in the words of an error message."""

    TEXT = "text"
    URL = "an http:// or https:// address without a name or password in it"
    INTEGER = "a whole number"
    NUMBER = "a number"
    BOOLEAN = "true or false"
    NAMES = "a list of names"
    FOLDERS = "a list of folders, each beginning with / or ~"
    SECRET = "env:NAME, file:PATH, or the secret itself"


class Setting(Struct, frozen=True):
    """One thing people may set."""

    name: str
    """Dotted; the part before the dot is its table in config.toml."""
    kind: SettingKind
    default: SettingValue
    description: str
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    alias: str = ""
    """A shorter name that is taken as well."""

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
        """The environment variable that sets it."""
        return "OUTRIDER_" + (self.alias or self.name).replace(".", "_").upper()

    @property
    def allowed_text(self) -> str:
        """What it takes, in words."""
        if self.choices:
            return " or ".join(choice or '""' for choice in self.choices)
        match self.minimum, self.maximum:
            case (None, _):
                return self.kind.value
            case (least, None):
                return f"{self.kind.value}, at least {least:g}"
            case (least, most):
                return f"{self.kind.value} from {_format_number(least)} to {_format_number(most)}"


SETTINGS: tuple[Setting, ...] = (
    Setting(
        "model.name",
        SettingKind.TEXT,
        "",
        "The model to ask: <provider>:<model> or <wire>:<model>, or practice.",
        alias="model",
    ),
    Setting("model.url", SettingKind.URL, "", "Base URL of the server that has the model."),
    Setting("model.key", SettingKind.SECRET, "", "The key for it: env:NAME, file:PATH, or the key itself."),
    Setting("model.fallbacks", SettingKind.NAMES, (), "Models to ask, in this order, when the first is unavailable."),
    Setting("model.window", SettingKind.INTEGER, 0, "Tokens the model can read; 0 when unknown.", minimum=0),
    Setting(
        "model.longest", SettingKind.INTEGER, 0, "Tokens one reply may have; 0 for the provider's default.", minimum=0
    ),
    Setting(
        "model.effort",
        SettingKind.TEXT,
        "",
        "How hard it should think; empty for its default.",
        ("", "low", "medium", "high"),
    ),
    Setting(
        "model.patience", SettingKind.NUMBER, 120.0, "Seconds without a byte before it counts as silent.", (), 0.1, 3600
    ),
    Setting("model.attempts", SettingKind.INTEGER, 5, "How often one request is tried.", (), 1, 20),
    Setting("model.price_input", SettingKind.NUMBER, None, "Dollars for a million tokens read.", minimum=0),
    Setting("model.price_output", SettingKind.NUMBER, None, "Dollars for a million tokens written.", minimum=0),
    Setting(
        "model.price_cached", SettingKind.NUMBER, None, "Dollars for a million tokens read from its cache.", minimum=0
    ),
    Setting("limits.steps", SettingKind.INTEGER, 60, "Steps one turn may take.", (), 1, 10_000),
    Setting("limits.repeats", SettingKind.INTEGER, 3, "How often the very same call may be made in a row.", (), 1, 100),
    Setting("limits.seconds", SettingKind.INTEGER, 3600, "Seconds one turn may take.", (), 1, 604_800),
    Setting(
        "limits.spend",
        SettingKind.NUMBER,
        5.0,
        "Dollars one turn may cost where prices are known; 0 for no cap.",
        minimum=0,
    ),
    Setting("limits.queue", SettingKind.INTEGER, 20, "Inputs that may wait in one session.", (), 1, 10_000),
    Setting("limits.input", SettingKind.INTEGER, 1_000_000, "Characters one message may have.", (), 1, 100_000_000),
    Setting("limits.turns", SettingKind.INTEGER, 8, "Turns that may go on at once.", (), 1, 1_000),
    Setting(
        "runtime.name",
        SettingKind.TEXT,
        "native",
        "What carries turns: native, codex, acp or another.",
        alias="runtime",
    ),
    Setting(
        "codex.command", SettingKind.TEXT, "", "The codex program; empty for the one on PATH, or the one pip installed."
    ),
    Setting("codex.home", SettingKind.TEXT, "", "Codex's own home folder; empty for yours (CODEX_HOME, or ~/.codex)."),
    Setting("codex.model", SettingKind.TEXT, "", "The model Codex asks; empty for what its own settings say."),
    Setting(
        "codex.sandbox",
        SettingKind.TEXT,
        "workspace-write",
        "What commands of Codex may touch without asking.",
        ("read-only", "workspace-write", "danger-full-access"),
    ),
    Setting(
        "codex.approval",
        SettingKind.TEXT,
        "on-request",
        "When Codex asks: for what leaves its sandbox, for everything, or never.",
        ("on-request", "untrusted", "never"),
    ),
    Setting(
        "codex.tools",
        SettingKind.TEXT,
        "auto",
        "How Codex gets our tools: declared to it, over MCP on loopback, or (auto) over MCP when it takes no others.",
        ("auto", "dynamic", "mcp"),
    ),
    Setting(
        "codex.seconds",
        SettingKind.INTEGER,
        600,
        "Seconds Codex may work on one turn; waiting is not counted.",
        (),
        1,
        604_800,
    ),
    Setting(
        "codex.quiet",
        SettingKind.INTEGER,
        90,
        "Seconds of silence after a tool before it is looked into whether Codex still works.",
        (),
        1,
        86_400,
    ),
    Setting(
        "codex.env", SettingKind.NAMES, (), "Variables that Codex is given besides the usual, e.g. for its model's key."
    ),
    Setting(
        "acp.command",
        SettingKind.TEXT,
        "",
        "The agent that carries turns over ACP, as typed in a shell: a program, words.",
    ),
    Setting(
        "acp.env",
        SettingKind.NAMES,
        (),
        "Variables that the agent is given besides the usual, e.g. for its model's key.",
    ),
    Setting(
        "acp.start",
        SettingKind.INTEGER,
        60,
        "Seconds the agent may take to start, and to open a session.",
        (),
        30,
        3600,
    ),
    Setting(
        "acp.quiet",
        SettingKind.INTEGER,
        600,
        "Seconds of silence before it is looked into whether the agent still works.",
        (),
        1,
        86_400,
    ),
    Setting(
        "shell.timeout",
        SettingKind.INTEGER,
        30,
        "Seconds a command is waited for before it becomes a task.",
        (),
        1,
        600,
    ),
    Setting("shell.ceiling", SettingKind.INTEGER, 86_400, "Seconds after which a command is ended.", (), 1, 2_592_000),
    Setting(
        "shell.output",
        SettingKind.INTEGER,
        50 * 1024 * 1024,
        "Bytes of output kept of one command; one that writes more is ended.",
        (),
        4096,
        10 * 1024**3,
    ),
    Setting("shell.tasks", SettingKind.INTEGER, 50, "Tasks one session may have open.", (), 1, 5_000),
    Setting(
        "sandbox.mode",
        SettingKind.TEXT,
        "auto",
        "Where there is no sandbox: auto asks for every command, required refuses it.",
        ("auto", "required"),
    ),
    Setting("sandbox.read", SettingKind.FOLDERS, (), "Folders that commands may read besides the system's."),
    Setting("sandbox.network", SettingKind.BOOLEAN, False, "Let commands use the network without asking."),
    Setting("sandbox.processes", SettingKind.INTEGER, 512, "Processes one command may have.", (), 16, 100_000),
    Setting("sandbox.memory", SettingKind.INTEGER, 2048, "MiB of memory one command may have.", (), 64, 1_048_576),
    Setting(
        "sandbox.file", SettingKind.INTEGER, 10_240, "MiB the largest file a command writes may have.", (), 1, 1_048_576
    ),
    Setting(
        "delegate.depth", SettingKind.INTEGER, 2, "How deep sessions may begin sessions; 0 for not at all.", (), 0, 10
    ),
    Setting(
        "delegate.children", SettingKind.INTEGER, 5, "Child sessions that may go on at once in one session.", (), 1, 100
    ),
    Setting(
        "asks.seconds",
        SettingKind.INTEGER,
        0,
        "Seconds after which an unanswered question is a no; 0 to wait until it is answered.",
        (),
        0,
        2_592_000,
    ),
    Setting("chat.markdown", SettingKind.BOOLEAN, True, "Render replies as Markdown in the terminal chat."),
    Setting("chat.history", SettingKind.BOOLEAN, True, "Remember what was typed in the terminal chat."),
    Setting("http.host", SettingKind.TEXT, "127.0.0.1", "Where `outrider up` listens; beyond loopback only by --host."),
    Setting(
        "http.port", SettingKind.INTEGER, 8642, "The port `outrider up` listens on; 0 takes a free one.", (), 0, 65_535
    ),
    Setting("http.names", SettingKind.NAMES, (), "Host names, besides its own address, under which clients reach it."),
    Setting(
        "webhook.url", SettingKind.URL, "", "Where to tell that a background response has ended; empty for nowhere."
    ),
    Setting(
        "webhook.secret",
        SettingKind.SECRET,
        "",
        "Signs webhooks: whsec_ and 24 to 64 bytes in base64. Without one, it is made when first needed.",
    ),
    Setting("log.level", SettingKind.TEXT, "info", "How much is logged.", ("debug", "info", "warning", "error")),
)
OTHER_VARIABLES = frozenset(
    {"OUTRIDER_HOME", "OUTRIDER_FAIL", "OUTRIDER_API_KEY", "OUTRIDER_REMOTE_URL", "OUTRIDER_REMOTE_KEY"}
)
"""Variables of ours that are no settings."""
OWN_KEY_VARIABLES = frozenset({"OUTRIDER_API_KEY", "OUTRIDER_REMOTE_KEY"})
"""Those of them that hold a secret."""
RULES_KEY = "rules"
"""Stands in config.toml beside the settings, as an array of tables."""
_MAX_NUMBER = 1e300
"""Beyond any sense; also keeps infinity and NaN out."""
_SETTINGS_BY_NAME = {name: setting for setting in SETTINGS for name in (setting.name, setting.alias) if name}
_BOOLEANS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def find_setting(name: str) -> Setting:
    """The setting of this name or alias. Raises Refused with the nearest one."""
    if found := _SETTINGS_BY_NAME.get(name):
        return found
    if name == RULES_KEY:
        raise Refused("rules are not set one by one: write each under [[rules]] in config.toml")
    raise Refused(f"no setting is called {printable_name(name)}{did_you_mean(name, (*_SETTINGS_BY_NAME, RULES_KEY))}")


def lookup_setting(name: str) -> Setting | None:
    return _SETTINGS_BY_NAME.get(name)


def closest_match(word: str, names: Iterable[str], likeness: float = 0.6) -> str:
    """The known word this one was probably meant to be, or an empty string."""
    import difflib  # Only a mistake needs it, and it is slow to import.

    close = difflib.get_close_matches(word, list(names), n=1, cutoff=likeness)
    return close[0] if close else ""


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """`; did you mean …?`, or nothing when nothing is near."""
    close = closest_match(word, names)
    return f"; did you mean {close}?" if close else ""


def parse_text(setting: Setting, text: str, where: str) -> SettingValue:
    """A value given as text, in a variable, a flag or a command. A secret stays the reference it was given as.

    `where`, if any, begins the error.
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
    """A value given with a type, as TOML has them. Raises Refused with what is allowed."""
    parsed = _coerce(setting.kind, value)
    if parsed is None:
        raise _invalid_value(setting, value, where)
    if isinstance(parsed, str) and setting.choices and parsed not in setting.choices:
        raise _invalid_value(setting, parsed, where)
    if isinstance(parsed, int | float) and not _is_in_range(setting, parsed):
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


def _is_in_range(setting: Setting, value: float) -> bool:
    return (setting.minimum is None or value >= setting.minimum) and (
        setting.maximum is None or value <= setting.maximum
    )


def _invalid_value(setting: Setting, value: object, where: str) -> Refused:
    name = f"{where}: {setting.name}" if where else setting.name
    if setting.is_secret or setting.kind is SettingKind.URL:  # An address may hold a password.
        return Refused(f"{name} is not valid; allowed: {setting.allowed_text}")
    return Refused(f"{name} = {quote_value(value)} is not valid; allowed: {setting.allowed_text}")


def printable_name(name: str) -> str:
    """A name as it can stand in one line."""
    return name if name.isprintable() and len(name) <= 60 else repr(name[:60])


def quote_value(value: object) -> str:
    """A value as it can stand in an error."""
    if isinstance(value, int) and abs(value) > _MAX_NUMBER:
        return "this number"
    text = repr(value)
    return text if len(text) <= 60 else text[:59] + "…"


def _format_number(number: float | None) -> str:
    if number is None:
        return ""
    return f"{int(number):_}" if number == int(number) else f"{number:g}"


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


class ModelSettings(Struct, frozen=True):
    name: str
    url: str
    key: Secret
    fallbacks: tuple[str, ...]
    window: int
    longest: int
    effort: str
    patience: float
    attempts: int
    price_input: float | None
    price_output: float | None
    price_cached: float | None


class LimitSettings(Struct, frozen=True):
    steps: int
    repeats: int
    seconds: int
    spend: float
    queue: int
    input: int
    turns: int


class RuntimeSettings(Struct, frozen=True):
    name: str


class CodexSettings(Struct, frozen=True):
    command: str
    home: str
    model: str
    sandbox: str
    approval: str
    tools: str
    seconds: int
    quiet: int
    env: tuple[str, ...]


class AcpSettings(Struct, frozen=True):
    command: str
    env: tuple[str, ...]
    start: int
    quiet: int


class ShellSettings(Struct, frozen=True):
    timeout: int
    ceiling: int
    output: int
    tasks: int


class SandboxSettings(Struct, frozen=True):
    mode: str
    read: tuple[str, ...]
    """Absolute paths."""
    network: bool
    processes: int
    memory: int
    """In MiB."""
    file: int
    """In MiB."""


class DelegateSettings(Struct, frozen=True):
    depth: int
    children: int


class QuestionSettings(Struct, frozen=True):
    seconds: int


class ChatSettings(Struct, frozen=True):
    markdown: bool
    history: bool


class HttpSettings(Struct, frozen=True):
    host: str
    port: int
    names: tuple[str, ...]


class WebhookSettings(Struct, frozen=True):
    url: str
    secret: Secret


class LogSettings(Struct, frozen=True):
    level: str


class Config(Struct, frozen=True):
    """Everything that is set, and where each value came from."""

    home: Path
    model: ModelSettings
    limits: LimitSettings
    runtime: RuntimeSettings
    codex: CodexSettings
    acp: AcpSettings
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
    """Of each secret that was given, the place it comes from."""
    model_by_setting: Mapping[str, str]
    """For `model.url` and others that belong to one model: the name that stood beside them where they were set."""
    keys: Mapping[str, Secret]
    """Keys in the environment, providers' and our own, by the name of the variable."""
    rules: tuple[Rule, ...] = ()
    """What was decided beforehand, in the order of the file."""
    warnings: tuple[str, ...] = ()

    def source(self, name: str) -> str:
        """`default`, `config.toml`, `environment OUTRIDER_…` or `flag`."""
        return self.sources.get(find_setting(name).name, "default")

    def value(self, name: str) -> SettingValue | Secret:
        setting = find_setting(name)
        return getattr(getattr(self, setting.category), setting.key)

    def display_value(self, name: str) -> str:
        """The value as people may see it: a secret only tells whether it is set, and where it comes from."""
        value, place = self.value(name), self.references.get(find_setting(name).name)
        if not isinstance(value, Secret):
            return render_value(value)
        return f"{'set' if value else 'not set'} (from {place})" if place else "not set"


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


CONFIG_FILE = "config.toml"


def render_value(value: SettingValue) -> str:
    """A value as people write it in a command."""
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


def build_sections(values: Mapping[str, SettingValue | Secret]) -> dict[str, Any]:
    def of(section: str) -> dict[str, Any]:
        return {setting.key: values[setting.name] for setting in SETTINGS if setting.category == section}

    return {
        "model": ModelSettings(**of("model")),
        "limits": LimitSettings(**of("limits")),
        "runtime": RuntimeSettings(**of("runtime")),
        "codex": CodexSettings(**of("codex")),
        "acp": AcpSettings(**of("acp")),
        "shell": ShellSettings(**of("shell")),
        "sandbox": SandboxSettings(**of("sandbox")),
        "delegate": DelegateSettings(**of("delegate")),
        "asks": QuestionSettings(**of("asks")),
        "chat": ChatSettings(**of("chat")),
        "http": HttpSettings(**of("http")),
        "webhook": WebhookSettings(**of("webhook")),
        "log": LogSettings(**of("log")),
    }
