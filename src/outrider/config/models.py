"""Known providers: which wire each speaks, where, and where people usually keep its key.

Which model to ask, and where: a name people write, resolved to a wire, an address and a key.

Turns the names people write into models that can be opened: wire, address, key.
"""

from collections.abc import Collection

from msgspec import Struct

from outrider.config.schema import Config, closest_match
from outrider.config.secrets import Secret
from outrider.core.errors import Refused
from outrider.core.types import Prices

PRACTICE = "practice"


class ProviderPreset(Struct, frozen=True):
    """A place that has models."""

    name: str
    wire: str
    url: str
    key_variables: tuple[str, ...] = ()
    """The environment variables its key is usually in; empty when it needs none."""
    default_model: str = ""
    """The model to take when only a key is found; empty when a key alone picks nothing."""
    model_prefixes: tuple[str, ...] = ()
    """How the names of its own models begin."""

    @property
    def is_local(self) -> bool:
        """Whether it is a program on this machine."""
        return not self.key_variables


PROVIDERS: tuple[ProviderPreset, ...] = (
    ProviderPreset(
        "anthropic",
        "anthropic",
        "https://api.anthropic.com",
        ("ANTHROPIC_API_KEY",),
        "claude-sonnet-5",
        ("claude",),
    ),
    ProviderPreset(
        "openai",
        "openai-responses",
        "https://api.openai.com/v1",
        ("OPENAI_API_KEY",),
        "gpt-5.6-terra",
        ("gpt-", "chatgpt", "o1", "o3", "o4"),
    ),
    ProviderPreset(
        "openrouter", "openai-chat", "https://openrouter.ai/api/v1", ("OPENROUTER_API_KEY",), "openrouter/auto"
    ),
    ProviderPreset(
        "gemini",
        "openai-chat",
        "https://generativelanguage.googleapis.com/v1beta/openai",
        ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        "gemini-3.7-flash",
        ("gemini",),
    ),
    ProviderPreset(
        "deepseek",
        "openai-chat",
        "https://api.deepseek.com",
        ("DEEPSEEK_API_KEY",),
        "deepseek-flash",
        ("deepseek",),
    ),
    ProviderPreset(
        "mistral",
        "openai-chat",
        "https://api.mistral.ai/v1",
        ("MISTRAL_API_KEY",),
        "mistral-medium-latest",
        ("mistral", "ministral", "magistral", "codestral", "devstral"),
    ),
    ProviderPreset("groq", "openai-chat", "https://api.groq.com/openai/v1", ("GROQ_API_KEY",), "openai/gpt-oss-120b"),
    ProviderPreset("xai", "openai-chat", "https://api.x.ai/v1", ("XAI_API_KEY",), "grok-4.5", ("grok",)),
    ProviderPreset(
        "moonshot",
        "openai-chat",
        "https://api.moonshot.ai/v1",
        ("MOONSHOT_API_KEY", "MOONSHOTAI_API_KEY"),
        "kimi-k2.6",
        ("kimi", "moonshot"),
    ),
    ProviderPreset("zai", "openai-chat", "https://api.z.ai/api/paas/v4", ("ZAI_API_KEY",), "glm-5.1", ("glm",)),
    ProviderPreset("together", "openai-chat", "https://api.together.xyz/v1", ("TOGETHER_API_KEY",)),
    ProviderPreset("fireworks", "openai-chat", "https://api.fireworks.ai/inference/v1", ("FIREWORKS_API_KEY",)),
    ProviderPreset("cerebras", "openai-chat", "https://api.cerebras.ai/v1", ("CEREBRAS_API_KEY",)),
    ProviderPreset("ollama", "openai-chat", "http://127.0.0.1:11434/v1"),
    ProviderPreset("lmstudio", "openai-chat", "http://127.0.0.1:1234/v1"),
    ProviderPreset("llamacpp", "openai-chat", "http://127.0.0.1:8080/v1"),
    ProviderPreset("vllm", "openai-chat", "http://127.0.0.1:8000/v1"),
)
"""In the order in which a found key picks one."""
PROVIDERS_BY_NAME = {provider.name: provider for provider in PROVIDERS}
WIRES = ("openai-chat", "openai-responses", "anthropic", PRACTICE, "pydantic-ai")
WIRE_PROVIDERS = {"openai-chat": "openai", "openai-responses": "openai", "anthropic": "anthropic"}
"""Whose address and key a wire takes when nothing else is said."""
KEY_VARIABLES = frozenset(key for provider in PROVIDERS for key in provider.key_variables)


class ModelChoice(Struct, frozen=True):
    """One model, ready to be opened."""

    name: str
    """As people write it, e.g. `anthropic:claude-sonnet-5`."""
    wire: str
    """`openai-chat`, `openai-responses`, `anthropic`, `practice`, or another wire that a plugin speaks."""
    model: str
    """As its provider calls it."""
    url: str = ""
    """The base URL, without a trailing slash; the wire adds its own path to it."""
    key: Secret = Secret("")
    context_window: int = 0
    """Tokens it can read; 0 when unknown."""
    max_output_tokens: int = 0
    """Tokens one reply may have; 0 for the wire's default."""
    effort: str = ""
    """How hard it should think (`low`, `medium`, `high`), or empty for the provider's default."""
    prices: Prices | None = None
    idle_timeout: float = 120.0
    """Seconds without a byte before the provider counts as silent."""
    attempts: int = 5
    """How often one request is tried."""


class ParsedModelName(Struct, frozen=True):
    """A model's name, taken apart."""

    prefix: str
    """The wire or provider as written."""
    wire: str
    model: str
    provider: ProviderPreset | None
    """Whose address and key it takes unless others are set."""

    @property
    def name(self) -> str:
        return f"{self.prefix}:{self.model}" if self.model != self.prefix else self.prefix


class DefaultModel(Struct, frozen=True):
    """The model that is asked when none is named, and why it is this one."""

    name: str
    reason: str


def choose_models(config: Config, name: str = "", wires: Collection[str] = WIRES) -> tuple[ModelChoice, ...]:
    """The main model, then its fallbacks. `name` takes the place of the main one. Raises Refused in one line."""
    main = _build_choice(config, name.strip() or default_model(config).name, wires, is_main=True)
    chosen = {main.name: main}
    for fallback in config.model.fallbacks:
        choice = _build_choice(config, fallback, wires, is_main=False)
        chosen.setdefault(choice.name, choice)
    return tuple(chosen.values())


def default_model(config: Config) -> DefaultModel:
    """The model that is set; else a good one of the first provider whose key is found; else practice."""
    if config.model.name:
        return DefaultModel(config.model.name, config.source("model.name"))
    for name in ("model.url", "model.key"):
        if name in config.model_by_setting:
            raise Refused(f"{name} is set, but no model: set OUTRIDER_MODEL, for example to openai-chat:<model>")
    for provider in PROVIDERS:
        if provider.default_model and provider.key_variables and provider.key_variables[0] in config.keys:
            return DefaultModel(f"{provider.name}:{provider.default_model}", f"{provider.key_variables[0]} is set")
    return DefaultModel(PRACTICE, "no model is set and no key was found")


def parse_model_name(name: str, has_url: bool = False, wires: Collection[str] = WIRES) -> ParsedModelName:
    """Take a name apart, or raise Refused. With an address at hand, a bare name is a model that speaks openai-chat."""
    name = name.strip()
    prefix, mark, model = name.partition(":")
    if prefix == PRACTICE:
        return ParsedModelName(PRACTICE, PRACTICE, model or PRACTICE, None)
    if mark and model.strip() and (prefix in wires or prefix in PROVIDERS_BY_NAME):
        home = PROVIDERS_BY_NAME.get(WIRE_PROVIDERS.get(prefix, prefix))
        return ParsedModelName(
            prefix, prefix if prefix in wires else PROVIDERS_BY_NAME[prefix].wire, model.strip(), home
        )
    if prefix in wires or prefix in PROVIDERS_BY_NAME:
        example = PROVIDERS_BY_NAME[prefix].default_model if prefix in PROVIDERS_BY_NAME else ""
        raise Refused(f"model {name!r} names no model: write {prefix}:{example or '<model>'}")
    close = closest_match(prefix, (*PROVIDERS_BY_NAME, *wires), 0.75) if mark else ""
    if close:
        raise Refused(f"no provider or wire is called {prefix!r}; did you mean {close}:{model}?")
    if has_url:
        return ParsedModelName("openai-chat", "openai-chat", name, PROVIDERS_BY_NAME["openai"])
    if mark and not _guess_provider(name):
        raise Refused(
            f"no provider or wire is called {prefix!r}; there are: {', '.join(dict.fromkeys((*PROVIDERS_BY_NAME, *wires)))}"
        )
    raise Refused(f"model {name!r} names no provider: write {_guess_provider(name) or 'ollama'}:{name}")


def _guess_provider(name: str) -> str:
    if "/" in name:
        return "openrouter"
    return next((provider.name for provider in PROVIDERS if name.lower().startswith(provider.model_prefixes)), "")


class _ModelLookup(Struct, frozen=True):
    """One model's name, read in the light of what is set."""

    config: Config
    parsed: ParsedModelName
    wires: Collection[str]
    is_main: bool

    def applies(self, setting: str, exactly: bool = True) -> bool:
        """Whether this setting is meant for this model: an address and a key serve every model of one provider."""
        described = self.config.model_by_setting.get(setting)
        if not described:
            return described == "" and self.is_main
        other = parse_model_name(described, bool(self.config.model.url), self.wires)
        return other.name == self.parsed.name if exactly else other.prefix == self.parsed.prefix


def _build_choice(config: Config, name: str, wires: Collection[str], is_main: bool) -> ModelChoice:
    model = config.model
    spoken = parse_model_name(name, bool(model.url), wires)
    reading = _ModelLookup(config, spoken, wires, is_main)
    url = model.url if reading.applies("model.url", exactly=False) else ""
    home_url = spoken.provider.url if spoken.provider else ""
    return ModelChoice(
        name=spoken.name,
        wire=spoken.wire,
        model=spoken.model,
        url=url or home_url,
        key=_find_key(reading, is_elsewhere=bool(url) and url != home_url),
        context_window=model.window if reading.applies("model.window") else 0,
        max_output_tokens=model.longest if reading.applies("model.longest") else 0,
        effort=model.effort if is_main else "",
        prices=_find_prices(reading),
        idle_timeout=model.patience,
        attempts=model.attempts,
    )


def _find_key(reading: _ModelLookup, is_elsewhere: bool) -> Secret:
    config, spoken = reading.config, reading.parsed
    if spoken.wire == PRACTICE:
        return Secret("")
    if reading.applies("model.key", exactly=False):
        if not config.model.key:
            raise Refused(f"model.key is {config.references['model.key']}, which is not set in the environment")
        return config.model.key
    usual = spoken.provider.key_variables if spoken.provider else ()
    if not usual or is_elsewhere:  # A provider's usual key goes to that provider's own address and nowhere else.
        return Secret("")
    for name in usual:
        if name in config.keys:
            return config.keys[name]
    raise Refused(f"{spoken.name} needs a key: set {usual[0]} or OUTRIDER_MODEL_KEY")


def _find_prices(reading: _ModelLookup) -> Prices | None:
    model = reading.config.model
    if not any(reading.applies(f"model.price_{what}") for what in ("input", "output", "cached")):
        return None
    if model.price_input is None or model.price_output is None:
        raise Refused("model.price_input and model.price_output must be set together")
    return Prices(model.price_input, model.price_output, model.price_cached)
