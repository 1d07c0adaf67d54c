"""Which model a request means, and which names it may use. Pure."""

from outrider import plugins
from outrider.channels.http.failures import HttpError
from outrider.config.choose import choose, pick, speak
from outrider.config.load import Config
from outrider.config.providers import BY_NAME, PRACTICE, PROVIDERS
from outrider.core.errors import Refused

OUTRIDER = "outrider"
"""Whatever model this home or session is set to."""


def known_models(config: Config) -> tuple[str, ...]:
    """The names to offer: what is set here, and a good one of every provider whose key is found."""
    found = [OUTRIDER]
    try:
        found += [choice.name for choice in choose(config, wires=plugins.names("models"))]
    except Refused:  # what is set here does not work; whoever asks it is told why
        found.append(pick(config).name)
    found += [f"{p.name}:{p.default}" for p in PROVIDERS if p.default and any(key in config.keys for key in p.keys)]
    return tuple(dict.fromkeys(found))


def chosen_model(config: Config, name: str) -> str:
    """The model a session is to use; empty for whatever it is set to.

    Clients often cannot leave the name out, and send one that means nothing here: that chooses nothing. A name that
    says whose model it is must work. Raises HttpError 404 when it does not.
    """
    prefix, mark, _ = name.partition(":")
    if not mark and name != PRACTICE:
        return ""
    wires = plugins.names("models")
    if prefix not in wires and prefix not in BY_NAME:
        return ""
    try:
        wanted = choose(config, name, wires)[0].name
        return "" if wanted == _default(config) else wanted
    except Refused as error:
        raise HttpError(404, f"the model {name[:100]!r} cannot be used here: {error}", "model_not_found") from error


def _default(config: Config) -> str:
    return speak(pick(config).name, bool(config.model.url), plugins.names("models")).name
