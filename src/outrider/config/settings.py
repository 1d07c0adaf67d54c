"""The one registry of what people may set: names, kinds, defaults and what is allowed. Pure; reads nothing."""

from collections.abc import Iterable
from enum import Enum

from msgspec import Struct

from outrider.core.errors import Refused

Value = str | int | float | bool | tuple[str, ...] | None


class Kind(Enum):
    """What a setting holds, in the words of an error message."""

    TEXT = "text"
    URL = "an http:// or https:// address without a name or password in it"
    WHOLE = "a whole number"
    DECIMAL = "a number"
    SWITCH = "true or false"
    NAMES = "a list of names"
    FOLDERS = "a list of folders, each beginning with / or ~"
    SECRET = "env:NAME, file:PATH, or the secret itself"


class Setting(Struct, frozen=True):
    """One thing people may set."""

    name: str
    """Dotted; the part before the dot is its table in config.toml."""
    kind: Kind
    default: Value
    description: str
    choices: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None
    alias: str = ""
    """A shorter name that is taken as well."""

    @property
    def category(self) -> str:
        return self.name.partition(".")[0]

    @property
    def key(self) -> str:
        return self.name.partition(".")[2]

    @property
    def secret(self) -> bool:
        return self.kind is Kind.SECRET

    @property
    def env(self) -> str:
        """The environment variable that sets it."""
        return "OUTRIDER_" + (self.alias or self.name).replace(".", "_").upper()

    @property
    def allowed(self) -> str:
        """What it takes, in words."""
        if self.choices:
            return " or ".join(choice or '""' for choice in self.choices)
        match self.least, self.most:
            case (None, _):
                return self.kind.value
            case (least, None):
                return f"{self.kind.value}, at least {least:g}"
            case (least, most):
                return f"{self.kind.value} from {_plain(least)} to {_plain(most)}"


SETTINGS: tuple[Setting, ...] = (
    Setting(
        "model.name",
        Kind.TEXT,
        "",
        "The model to ask: <provider>:<model> or <wire>:<model>, or practice.",
        alias="model",
    ),
    Setting("model.url", Kind.URL, "", "Base URL of the server that has the model."),
    Setting("model.key", Kind.SECRET, "", "The key for it: env:NAME, file:PATH, or the key itself."),
    Setting("model.fallbacks", Kind.NAMES, (), "Models to ask, in this order, when the first is unavailable."),
    Setting("model.window", Kind.WHOLE, 0, "Tokens the model can read; 0 when unknown.", least=0),
    Setting("model.longest", Kind.WHOLE, 0, "Tokens one reply may have; 0 for the provider's default.", least=0),
    Setting(
        "model.effort", Kind.TEXT, "", "How hard it should think; empty for its default.", ("", "low", "medium", "high")
    ),
    Setting("model.patience", Kind.DECIMAL, 120.0, "Seconds without a byte before it counts as silent.", (), 0.1, 3600),
    Setting("model.attempts", Kind.WHOLE, 5, "How often one request is tried.", (), 1, 20),
    Setting("model.price_input", Kind.DECIMAL, None, "Dollars for a million tokens read.", least=0),
    Setting("model.price_output", Kind.DECIMAL, None, "Dollars for a million tokens written.", least=0),
    Setting("model.price_cached", Kind.DECIMAL, None, "Dollars for a million tokens read from its cache.", least=0),
    Setting("limits.steps", Kind.WHOLE, 60, "Steps one turn may take.", (), 1, 10_000),
    Setting("limits.repeats", Kind.WHOLE, 3, "How often the very same call may be made in a row.", (), 1, 100),
    Setting("limits.seconds", Kind.WHOLE, 3600, "Seconds one turn may take.", (), 1, 604_800),
    Setting(
        "limits.spend", Kind.DECIMAL, 5.0, "Dollars one turn may cost where prices are known; 0 for no cap.", least=0
    ),
    Setting("limits.queue", Kind.WHOLE, 20, "Inputs that may wait in one session.", (), 1, 10_000),
    Setting("limits.input", Kind.WHOLE, 1_000_000, "Characters one message may have.", (), 1, 100_000_000),
    Setting("limits.turns", Kind.WHOLE, 8, "Turns that may go on at once.", (), 1, 1_000),
    Setting("runtime.name", Kind.TEXT, "native", "What carries turns: native, codex, acp or another.", alias="runtime"),
    Setting("codex.command", Kind.TEXT, "", "The codex program; empty for the one on PATH, or the one pip installed."),
    Setting("codex.home", Kind.TEXT, "", "Codex's own home folder; empty for yours (CODEX_HOME, or ~/.codex)."),
    Setting("codex.model", Kind.TEXT, "", "The model Codex asks; empty for what its own settings say."),
    Setting(
        "codex.sandbox",
        Kind.TEXT,
        "workspace-write",
        "What commands of Codex may touch without asking.",
        ("read-only", "workspace-write", "danger-full-access"),
    ),
    Setting(
        "codex.approval",
        Kind.TEXT,
        "on-request",
        "When Codex asks: for what leaves its sandbox, for everything, or never.",
        ("on-request", "untrusted", "never"),
    ),
    Setting(
        "codex.tools",
        Kind.TEXT,
        "auto",
        "How Codex gets our tools: declared to it, over MCP on loopback, or (auto) over MCP when it takes no others.",
        ("auto", "dynamic", "mcp"),
    ),
    Setting(
        "codex.seconds", Kind.WHOLE, 600, "Seconds Codex may work on one turn; waiting is not counted.", (), 1, 604_800
    ),
    Setting(
        "codex.quiet",
        Kind.WHOLE,
        90,
        "Seconds of silence after a tool before it is looked into whether Codex still works.",
        (),
        1,
        86_400,
    ),
    Setting("codex.env", Kind.NAMES, (), "Variables that Codex is given besides the usual, e.g. for its model's key."),
    Setting(
        "acp.command", Kind.TEXT, "", "The agent that carries turns over ACP, as typed in a shell: a program, words."
    ),
    Setting(
        "acp.env", Kind.NAMES, (), "Variables that the agent is given besides the usual, e.g. for its model's key."
    ),
    Setting("acp.start", Kind.WHOLE, 60, "Seconds the agent may take to start, and to open a session.", (), 30, 3600),
    Setting(
        "acp.quiet",
        Kind.WHOLE,
        600,
        "Seconds of silence before it is looked into whether the agent still works.",
        (),
        1,
        86_400,
    ),
    Setting("shell.timeout", Kind.WHOLE, 30, "Seconds a command is waited for before it becomes a task.", (), 1, 600),
    Setting("shell.ceiling", Kind.WHOLE, 86_400, "Seconds after which a command is ended.", (), 1, 2_592_000),
    Setting(
        "shell.output",
        Kind.WHOLE,
        50 * 1024 * 1024,
        "Bytes of output kept of one command; one that writes more is ended.",
        (),
        4096,
        10 * 1024**3,
    ),
    Setting("shell.tasks", Kind.WHOLE, 50, "Tasks one session may have open.", (), 1, 5_000),
    Setting(
        "sandbox.mode",
        Kind.TEXT,
        "auto",
        "Where there is no sandbox: auto asks for every command, required refuses it.",
        ("auto", "required"),
    ),
    Setting("sandbox.read", Kind.FOLDERS, (), "Folders that commands may read besides the system's."),
    Setting("sandbox.network", Kind.SWITCH, False, "Let commands use the network without asking."),
    Setting("sandbox.processes", Kind.WHOLE, 512, "Processes one command may have.", (), 16, 100_000),
    Setting("sandbox.memory", Kind.WHOLE, 2048, "MiB of memory one command may have.", (), 64, 1_048_576),
    Setting("sandbox.file", Kind.WHOLE, 10_240, "MiB the largest file a command writes may have.", (), 1, 1_048_576),
    Setting("delegate.depth", Kind.WHOLE, 2, "How deep sessions may begin sessions; 0 for not at all.", (), 0, 10),
    Setting("delegate.children", Kind.WHOLE, 5, "Child sessions that may go on at once in one session.", (), 1, 100),
    Setting(
        "asks.seconds",
        Kind.WHOLE,
        0,
        "Seconds after which an unanswered question is a no; 0 to wait until it is answered.",
        (),
        0,
        2_592_000,
    ),
    Setting("chat.markdown", Kind.SWITCH, True, "Render replies as Markdown in the terminal chat."),
    Setting("chat.history", Kind.SWITCH, True, "Remember what was typed in the terminal chat."),
    Setting("http.host", Kind.TEXT, "127.0.0.1", "Where `outrider up` listens; beyond loopback only by --host."),
    Setting("http.port", Kind.WHOLE, 8642, "The port `outrider up` listens on; 0 takes a free one.", (), 0, 65_535),
    Setting("http.names", Kind.NAMES, (), "Host names, besides its own address, under which clients reach it."),
    Setting("webhook.url", Kind.URL, "", "Where to tell that a background response has ended; empty for nowhere."),
    Setting(
        "webhook.secret",
        Kind.SECRET,
        "",
        "Signs webhooks: whsec_ and 24 to 64 bytes in base64. Without one, it is made when first needed.",
    ),
    Setting("log.level", Kind.TEXT, "info", "How much is logged.", ("debug", "info", "warning", "error")),
)

OTHER_VARIABLES = frozenset(
    {"OUTRIDER_HOME", "OUTRIDER_FAIL", "OUTRIDER_API_KEY", "OUTRIDER_REMOTE_URL", "OUTRIDER_REMOTE_KEY"}
)
"""Variables of ours that are no settings."""

OWN_KEYS = frozenset({"OUTRIDER_API_KEY", "OUTRIDER_REMOTE_KEY"})
"""Those of them that hold a secret."""

RULES = "rules"
"""Stands in config.toml beside the settings, as an array of tables."""

_HUGE = 1e300
"""Beyond any sense; also keeps infinity and NaN out."""

_BY_NAME = {name: setting for setting in SETTINGS for name in (setting.name, setting.alias) if name}
_SWITCHES = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def find(name: str) -> Setting:
    """The setting of this name or alias. Raises Refused with the nearest one."""
    if found := _BY_NAME.get(name):
        return found
    if name == RULES:
        raise Refused("rules are not set one by one: write each under [[rules]] in config.toml")
    raise Refused(f"no setting is called {printable(name)}{did_you_mean(name, (*_BY_NAME, RULES))}")


def lookup(name: str) -> Setting | None:
    return _BY_NAME.get(name)


def nearest(word: str, known: Iterable[str], likeness: float = 0.6) -> str:
    """The known word this one was probably meant to be, or an empty string."""
    import difflib  # Only a mistake needs it, and it is slow to import.

    close = difflib.get_close_matches(word, list(known), n=1, cutoff=likeness)
    return close[0] if close else ""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean …?`, or nothing when nothing is near."""
    close = nearest(word, known)
    return f"; did you mean {close}?" if close else ""


def parse_text(setting: Setting, text: str, where: str) -> Value:
    """A value given as text, in a variable, a flag or a command. A secret stays the reference it was given as.

    `where`, if any, begins the error.
    """
    text = text.strip()
    value: object = text
    try:
        text.encode()
        match setting.kind:
            case Kind.WHOLE:
                value = int(text)
            case Kind.DECIMAL:
                value = float(text)
            case Kind.SWITCH:
                value = _SWITCHES[text.lower()]
            case Kind.NAMES | Kind.FOLDERS:
                value = [part.strip() for part in text.split(",") if part.strip()]
            case Kind.TEXT | Kind.URL | Kind.SECRET:
                pass
    except (ValueError, KeyError):
        raise _bad(setting, text, where) from None
    return parse_value(setting, value, where)


def parse_value(setting: Setting, value: object, where: str) -> Value:
    """A value given with a type, as TOML has them. Raises Refused with what is allowed."""
    parsed = _typed(setting.kind, value)
    if parsed is None:
        raise _bad(setting, value, where)
    if isinstance(parsed, str) and setting.choices and parsed not in setting.choices:
        raise _bad(setting, parsed, where)
    if isinstance(parsed, int | float) and not _within(setting, parsed):
        raise _bad(setting, parsed, where)
    return parsed


def _typed(kind: Kind, value: object) -> Value:
    match kind, value:
        case (Kind.SWITCH, bool()):
            return value
        case (Kind.WHOLE | Kind.DECIMAL, bool()):
            return None
        case (Kind.WHOLE, int()):
            return value
        case (Kind.DECIMAL, int() | float()):
            return float(value) if -_HUGE < value < _HUGE else None
        case (_, str()) if not value.strip().isprintable():
            return None
        case (Kind.TEXT | Kind.SECRET, str()):
            return value.strip()
        case (Kind.URL, str()):
            return _url(value.strip())
        case (Kind.NAMES, list()):
            return _names(value)  # pyright: ignore[reportUnknownArgumentType]
        case (Kind.FOLDERS, list()):
            names = _names(value)  # pyright: ignore[reportUnknownArgumentType]
            return names if all(name.startswith(("/", "~")) for name in names or ()) else None
        case _:
            return None


def _names(value: list[object]) -> tuple[str, ...] | None:
    names = tuple(
        item.strip() for item in value if isinstance(item, str) and item.strip().isprintable() and item.strip()
    )
    return names if len(names) == len(value) else None


def _url(text: str) -> str | None:
    scheme, mark, rest = text.partition("://")
    host = rest.partition("/")[0]
    if not text:
        return ""
    if scheme.lower() not in ("http", "https") or not mark or not host or "@" in host or any(c.isspace() for c in text):
        return None
    return text.rstrip("/")


def _within(setting: Setting, value: float) -> bool:
    return (setting.least is None or value >= setting.least) and (setting.most is None or value <= setting.most)


def _bad(setting: Setting, value: object, where: str) -> Refused:
    name = f"{where}: {setting.name}" if where else setting.name
    if setting.secret or setting.kind is Kind.URL:  # An address may hold a password.
        return Refused(f"{name} is not valid; allowed: {setting.allowed}")
    return Refused(f"{name} = {quoted(value)} is not valid; allowed: {setting.allowed}")


def printable(name: str) -> str:
    """A name as it can stand in one line."""
    return name if name.isprintable() and len(name) <= 60 else repr(name[:60])


def quoted(value: object) -> str:
    """A value as it can stand in an error."""
    if isinstance(value, int) and abs(value) > _HUGE:
        return "this number"
    text = repr(value)
    return text if len(text) <= 60 else text[:59] + "…"


def _plain(number: float | None) -> str:
    if number is None:
        return ""
    return f"{int(number):_}" if number == int(number) else f"{number:g}"
