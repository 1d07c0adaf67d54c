"""The schema of config.toml: every setting declared once, with its type, default, limits and help text.

Loading, environment variables, `outrider config`, validation and the reference page are all derived from these
declarations. Pure: nothing here reads a file or the environment. Their values are parsed in `setting_values`.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
from msgspec import Meta, Struct

from outrider.config.secrets import Secret
from outrider.config.setting_values import Setting, SettingKind, SettingValue, render_value
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
    mode: Annotated[str, Meta(description="Its mode; empty for its own. `runtime doctor acp` lists them.")] = ""
    tools: Annotated[Literal["auto", "off"], Meta(description="Whether it gets Outrider's tools, over MCP.")] = "auto"
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


def printable_name(name: str) -> str:
    """A name, quoted and clipped unless it is short and printable."""
    return name if name.isprintable() and len(name) <= 60 else repr(name[:60])


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
