"""Turns the names people write into models that can be opened: wire, address, key."""

from collections.abc import Collection

from msgspec import Struct

from outrider.config.choice import ModelChoice, Secret
from outrider.config.load import Config
from outrider.config.providers import BY_NAME, PRACTICE, PROVIDERS, WIRE_HOMES, WIRES, Provider
from outrider.config.settings import nearest
from outrider.core.errors import Refused
from outrider.core.parts import Prices


class Spoken(Struct, frozen=True):
    """A model's name, taken apart."""

    prefix: str
    """The wire or provider as written."""
    wire: str
    model: str
    home: Provider | None
    """Whose address and key it takes unless others are set."""

    @property
    def name(self) -> str:
        return f"{self.prefix}:{self.model}" if self.model != self.prefix else self.prefix


class Pick(Struct, frozen=True):
    """The model that is asked when none is named, and why it is this one."""

    name: str
    why: str


def choose(config: Config, name: str = "", wires: Collection[str] = WIRES) -> tuple[ModelChoice, ...]:
    """The main model, then its fallbacks. `name` takes the place of the main one. Raises Refused in one line."""
    main = _choice(config, name.strip() or pick(config).name, wires, is_main=True)
    chosen = {main.name: main}
    for fallback in config.model.fallbacks:
        choice = _choice(config, fallback, wires, is_main=False)
        chosen.setdefault(choice.name, choice)
    return tuple(chosen.values())


def pick(config: Config) -> Pick:
    """The model that is set; else a good one of the first provider whose key is found; else practice."""
    if config.model.name:
        return Pick(config.model.name, config.source("model.name"))
    for name in ("model.url", "model.key"):
        if name in config.described:
            raise Refused(f"{name} is set, but no model: set OUTRIDER_MODEL, for example to openai-chat:<model>")
    for provider in PROVIDERS:
        if provider.default and provider.keys and provider.keys[0] in config.keys:
            return Pick(f"{provider.name}:{provider.default}", f"{provider.keys[0]} is set")
    return Pick(PRACTICE, "no model is set and no key was found")


def speak(name: str, has_url: bool = False, wires: Collection[str] = WIRES) -> Spoken:
    """Take a name apart, or raise Refused. With an address at hand, a bare name is a model that speaks openai-chat."""
    name = name.strip()
    prefix, mark, model = name.partition(":")
    if prefix == PRACTICE:
        return Spoken(PRACTICE, PRACTICE, model or PRACTICE, None)
    if mark and model.strip() and (prefix in wires or prefix in BY_NAME):
        home = BY_NAME.get(WIRE_HOMES.get(prefix, prefix))
        return Spoken(prefix, prefix if prefix in wires else BY_NAME[prefix].wire, model.strip(), home)
    if prefix in wires or prefix in BY_NAME:
        example = BY_NAME[prefix].default if prefix in BY_NAME else ""
        raise Refused(f"model {name!r} names no model: write {prefix}:{example or '<model>'}")
    close = nearest(prefix, (*BY_NAME, *wires), 0.75) if mark else ""
    if close:
        raise Refused(f"no provider or wire is called {prefix!r}; did you mean {close}:{model}?")
    if has_url:
        return Spoken("openai-chat", "openai-chat", name, BY_NAME["openai"])
    if mark and not _family(name):
        raise Refused(
            f"no provider or wire is called {prefix!r}; there are: {', '.join(dict.fromkeys((*BY_NAME, *wires)))}"
        )
    raise Refused(f"model {name!r} names no provider: write {_family(name) or 'ollama'}:{name}")


def _family(name: str) -> str:
    if "/" in name:
        return "openrouter"
    return next((provider.name for provider in PROVIDERS if name.lower().startswith(provider.families)), "")


class _Reading(Struct, frozen=True):
    """One model's name, read in the light of what is set."""

    config: Config
    spoken: Spoken
    wires: Collection[str]
    is_main: bool

    def is_about_it(self, setting: str, exactly: bool = True) -> bool:
        """Whether this setting is meant for this model: an address and a key serve every model of one provider."""
        described = self.config.described.get(setting)
        if not described:
            return described == "" and self.is_main
        other = speak(described, bool(self.config.model.url), self.wires)
        return other.name == self.spoken.name if exactly else other.prefix == self.spoken.prefix


def _choice(config: Config, name: str, wires: Collection[str], is_main: bool) -> ModelChoice:
    model = config.model
    spoken = speak(name, bool(model.url), wires)
    reading = _Reading(config, spoken, wires, is_main)
    url = model.url if reading.is_about_it("model.url", exactly=False) else ""
    home_url = spoken.home.url if spoken.home else ""
    return ModelChoice(
        name=spoken.name,
        wire=spoken.wire,
        model=spoken.model,
        url=url or home_url,
        key=_key(reading, is_elsewhere=bool(url) and url != home_url),
        window=model.window if reading.is_about_it("model.window") else 0,
        longest=model.longest if reading.is_about_it("model.longest") else 0,
        effort=model.effort if is_main else "",
        prices=_prices(reading),
        patience=model.patience,
        attempts=model.attempts,
    )


def _key(reading: _Reading, is_elsewhere: bool) -> Secret:
    config, spoken = reading.config, reading.spoken
    if spoken.wire == PRACTICE:
        return Secret("")
    if reading.is_about_it("model.key", exactly=False):
        if not config.model.key:
            raise Refused(f"model.key is {config.references['model.key']}, which is not set in the environment")
        return config.model.key
    usual = spoken.home.keys if spoken.home else ()
    if not usual or is_elsewhere:  # A provider's usual key goes to that provider's own address and nowhere else.
        return Secret("")
    for name in usual:
        if name in config.keys:
            return config.keys[name]
    raise Refused(f"{spoken.name} needs a key: set {usual[0]} or OUTRIDER_MODEL_KEY")


def _prices(reading: _Reading) -> Prices | None:
    model = reading.config.model
    if not any(reading.is_about_it(f"model.price_{what}") for what in ("input", "output", "cached")):
        return None
    if model.price_input is None or model.price_output is None:
        raise Refused("model.price_input and model.price_output must be set together")
    return Prices(model.price_input, model.price_output, model.price_cached)
