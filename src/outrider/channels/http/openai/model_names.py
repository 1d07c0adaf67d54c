"""Which model or runtime a request means by its `model`, and which names it may use."""

from collections.abc import Mapping

from outrider import plugins
from outrider.app.runtimes import find_program, parse_runtime, runtime_names, runtime_of, takes_client_tools
from outrider.channels.http.errors import HttpError
from outrider.config.models import (
    PRACTICE,
    PROVIDERS,
    PROVIDERS_BY_NAME,
    choose_models,
    default_model,
    parse_model_name,
)
from outrider.config.schema import Config
from outrider.core.errors import Refused
from outrider.core.ports import NATIVE

OUTRIDER = "outrider"
"""Whatever model this home or session is set to."""


def known_models(config: Config) -> tuple[str, ...]:
    """The names to offer: what is set here, and a good one of every provider whose key is found."""
    found = [OUTRIDER]
    try:
        found += [choice.name for choice in choose_models(config, wires=plugins.names("models"))]
    except Refused:  # what is set here does not work; whoever asks it is told why
        found.append(default_model(config).name)
    found += [
        f"{p.name}:{p.default_model}"
        for p in PROVIDERS
        if p.default_model and any(key in config.keys for key in p.key_variables)
    ]
    return tuple(dict.fromkeys(found))


def settings_for_model(config: Config, name: str) -> Mapping[str, str]:
    """What a session is to be set to by this name: a runtime, or a model, which our own loop asks.

    `codex` is a runtime, `codex:gpt-5.5` has it ask that model. Raises HttpError 404 for what cannot be used here.
    """
    if name.partition(":")[0] in runtime_names():
        try:
            wanted = parse_runtime(name)
            find_program(config, wanted.name)
        except Refused as error:
            raise _unusable(name, error) from error
        return wanted.settings
    model = _qualified_model(config, name)
    if not model:
        return {}
    return {"runtime": NATIVE} if model == _default(config) else {"runtime": NATIVE, "model": model}


def reported_model(settings: Mapping[str, str]) -> str:
    """What an answer says under `model`, when this was set."""
    wanted = runtime_of(settings, NATIVE)
    return settings.get("model") or OUTRIDER if wanted.name == NATIVE else str(wanted)


def check_client_tools(settings: Mapping[str, str], default: str) -> None:
    """Refuses tools of a client for what carries a session with these settings, where it cannot use them."""
    name = runtime_of(settings, default).name
    if not takes_client_tools(name):
        told = f"{name} cannot use tools of its client: leave out `tools`, or name another model (`GET /v1/models`)"
        raise HttpError(400, told, "tools_not_used")


def model_setting(config: Config, name: str) -> str:
    """The model a session is to use; empty for whatever it is set to."""
    wanted = _qualified_model(config, name)
    return "" if wanted and wanted == _default(config) else wanted


def _qualified_model(config: Config, name: str) -> str:
    """The model of this name, whole; empty for a name that means nothing here.

    Clients often cannot leave the name out, and send one that means nothing: that chooses nothing. A name that says
    whose model it is must work. Raises HttpError 404 when it does not.
    """
    prefix, mark, _ = name.partition(":")
    if not mark and name != PRACTICE:
        return ""
    wires = plugins.names("models")
    if prefix not in wires and prefix not in PROVIDERS_BY_NAME:
        return ""
    try:
        return choose_models(config, name, wires)[0].name
    except Refused as error:
        raise _unusable(name, error) from error


def _unusable(name: str, error: Refused) -> HttpError:
    return HttpError(404, f"the model {name[:100]!r} cannot be used here: {error}", "model_not_found")


def _default(config: Config) -> str:
    return parse_model_name(default_model(config).name, bool(config.model.url), plugins.names("models")).name
