"""Providers, and the choice of models: a model's name is resolved to a wire, a URL and an API key.

A key is only ever sent to the provider it belongs to.
"""

from collections.abc import Collection

from msgspec import Struct

from outrider.config.schema import Config
from outrider.config.secrets import Secret
from outrider.core.errors import Refused
from outrider.core.text import closest_match
from outrider.core.types import Prices

PRACTICE = "practice"


class ProviderPreset(Struct, frozen=True):
    """A known provider: its wire, URL and the usual variables for its key."""

    name: str
    wire: str
    url: str
    key_variables: tuple[str, ...] = ()
    """The usual environment variables for its key; empty when it needs none."""
    default_model: str = ""
    """The model to use when only a key is set; empty when a key alone selects nothing."""
    model_prefixes: tuple[str, ...] = ()
    """Prefixes of the names of its own models."""

    @property
    def is_local(self) -> bool:
        """Whether it is a server on this machine."""
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
"""In order of preference: the first one with a key supplies the default model."""
PROVIDERS_BY_NAME = {provider.name: provider for provider in PROVIDERS}
WIRES = ("openai-chat", "openai-responses", "anthropic", PRACTICE, "pydantic-ai")
WIRE_PROVIDERS = {"openai-chat": "openai", "openai-responses": "openai", "anthropic": "anthropic"}
"""The provider whose URL and key a wire uses by default."""
KEY_VARIABLES = frozenset(key for provider in PROVIDERS for key in provider.key_variables)


class ModelChoice(Struct, frozen=True):
    """One model, ready to be opened."""

    name: str
    """The full name, e.g. `anthropic:claude-sonnet-5`."""
    wire: str
    """`openai-chat`, `openai-responses`, `anthropic`, `practice`, or the wire of a plugin."""
    model: str
    """The provider's own name for it."""
    url: str = ""
    """The base URL, without a trailing slash; the wire appends its own path."""
    key: Secret = Secret("")
    context_window: int = 0
    """In tokens; 0 if unknown."""
    max_output_tokens: int = 0
    """0 for the wire's default."""
    effort: str = ""
    """Reasoning effort (`low`, `medium`, `high`), or empty for the provider's default."""
    prices: Prices | None = None
    idle_timeout: float = 120.0
    """Seconds without any data before a request times out."""
    attempts: int = 5
    """Maximum attempts for one request."""


class ParsedModelName(Struct, frozen=True):
    prefix: str
    """The wire or provider, as written."""
    wire: str
    model: str
    provider: ProviderPreset | None
    """The provider whose URL and key it uses unless others are set."""

    @property
    def name(self) -> str:
        return f"{self.prefix}:{self.model}" if self.model != self.prefix else self.prefix


class DefaultModel(Struct, frozen=True):
    """The model that is used when none is named, and the reason."""

    name: str
    reason: str


def choose_models(config: Config, name: str = "", wires: Collection[str] = WIRES) -> tuple[ModelChoice, ...]:
    """The main model, then its fallbacks. `name` replaces the main one. Raises Refused with a one-line message."""
    main = _build_choice(config, name.strip() or default_model(config).name, wires, is_main=True)
    choices = {main.name: main}
    for fallback in config.model.fallbacks:
        choice = _build_choice(config, fallback, wires, is_main=False)
        choices.setdefault(choice.name, choice)
    return tuple(choices.values())


def default_model(config: Config) -> DefaultModel:
    """The configured model, or the default model of the first provider with a key, or practice."""
    if config.model.name:
        return DefaultModel(config.model.name, config.source("model.name"))
    for name in ("model.url", "model.key"):
        if name in config.model_by_setting:
            raise Refused(f"{name} is set, but no model is: set OUTRIDER_MODEL, for example to openai-chat:<model>")
    for provider in PROVIDERS:
        if provider.default_model and provider.key_variables and provider.key_variables[0] in config.keys:
            return DefaultModel(f"{provider.name}:{provider.default_model}", f"{provider.key_variables[0]} is set")
    return DefaultModel(PRACTICE, "no model is configured and no API key is set")


def parse_model_name(name: str, has_url: bool = False, wires: Collection[str] = WIRES) -> ParsedModelName:
    """Parse a model name, or raise Refused. If a URL is set, a bare name is a model on the openai-chat wire."""
    name = name.strip()
    prefix, colon, model = name.partition(":")
    if prefix == PRACTICE:
        return ParsedModelName(PRACTICE, PRACTICE, model or PRACTICE, None)
    if colon and model.strip() and (prefix in wires or prefix in PROVIDERS_BY_NAME):
        provider = PROVIDERS_BY_NAME.get(WIRE_PROVIDERS.get(prefix, prefix))
        wire = prefix if prefix in wires else PROVIDERS_BY_NAME[prefix].wire
        return ParsedModelName(prefix, wire, model.strip(), provider)
    if prefix in wires or prefix in PROVIDERS_BY_NAME:
        example = PROVIDERS_BY_NAME[prefix].default_model if prefix in PROVIDERS_BY_NAME else ""
        raise Refused(f"{name!r} names a provider or wire but no model; write {prefix}:{example or '<model>'}")
    match = closest_match(prefix, (*PROVIDERS_BY_NAME, *wires), 0.75) if colon else ""
    if match:
        raise Refused(f"there is no provider or wire {prefix!r}; did you mean {match}:{model}?")
    if has_url:
        return ParsedModelName("openai-chat", "openai-chat", name, PROVIDERS_BY_NAME["openai"])
    if colon and not _guess_provider(name):
        names = ", ".join(dict.fromkeys((*PROVIDERS_BY_NAME, *wires)))
        raise Refused(f"there is no provider or wire {prefix!r}; available: {names}")
    guess = _guess_provider(name) or "ollama"
    raise Refused(f"{name!r} names a model but no provider; write, for example, {guess}:{name}")


def _guess_provider(name: str) -> str:
    if "/" in name:
        return "openrouter"
    return next((provider.name for provider in PROVIDERS if name.lower().startswith(provider.model_prefixes)), "")


class _ModelLookup(Struct, frozen=True):
    """A model name together with the configuration it is resolved in."""

    config: Config
    parsed: ParsedModelName
    wires: Collection[str]
    is_main: bool

    def applies(self, setting: str, exactly: bool = True) -> bool:
        """Whether a setting is for this model; unless `exactly`, it is also for other models of the same provider."""
        name = self.config.model_by_setting.get(setting)
        if not name:
            return name == "" and self.is_main
        other = parse_model_name(name, bool(self.config.model.url), self.wires)
        return other.name == self.parsed.name if exactly else other.prefix == self.parsed.prefix


def _build_choice(config: Config, name: str, wires: Collection[str], is_main: bool) -> ModelChoice:
    model = config.model
    parsed = parse_model_name(name, bool(model.url), wires)
    lookup = _ModelLookup(config, parsed, wires, is_main)
    url = model.url if lookup.applies("model.url", exactly=False) else ""
    provider_url = parsed.provider.url if parsed.provider else ""
    return ModelChoice(
        name=parsed.name,
        wire=parsed.wire,
        model=parsed.model,
        url=url or provider_url,
        key=_find_key(lookup, is_other_url=bool(url) and url != provider_url),
        context_window=model.window if lookup.applies("model.window") else 0,
        max_output_tokens=model.longest if lookup.applies("model.longest") else 0,
        effort=model.effort if is_main else "",
        prices=_find_prices(lookup),
        idle_timeout=model.patience,
        attempts=model.attempts,
    )


def _find_key(lookup: _ModelLookup, is_other_url: bool) -> Secret:
    config, parsed = lookup.config, lookup.parsed
    if parsed.wire == PRACTICE:
        return Secret("")
    if lookup.applies("model.key", exactly=False):
        if not config.model.key:
            raise Refused(f"model.key is {config.references['model.key']}, which is not set in the environment")
        return config.model.key
    variables = parsed.provider.key_variables if parsed.provider else ()
    if not variables or is_other_url:  # A provider's usual key is sent to that provider's own URL only.
        return Secret("")
    for name in variables:
        if name in config.keys:
            return config.keys[name]
    raise Refused(f"{parsed.name} needs a key: set {variables[0]} or OUTRIDER_MODEL_KEY")


def _find_prices(lookup: _ModelLookup) -> Prices | None:
    model = lookup.config.model
    if not any(lookup.applies(f"model.price_{kind}") for kind in ("input", "output", "cached")):
        return None
    if model.price_input is None or model.price_output is None:
        raise Refused("model.price_input and model.price_output must be set together")
    return Prices(model.price_input, model.price_output, model.price_cached)
