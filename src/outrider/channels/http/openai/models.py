"""`/v1/models`: the names of models and runtimes that a request may use, and the settings they stand for."""

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from outrider import plugins
from outrider.app.runtimes import (
    available_runtimes,
    find_program,
    parse_runtime,
    runtime_names,
    runtime_of,
    takes_client_tools,
)
from outrider.channels.http.endpoints import ApiCall, endpoint
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
from outrider.core.types import REMOTE

OUTRIDER = "outrider"
"""The name of the model that the home or session is set to."""


def known_models(config: Config) -> tuple[str, ...]:
    """The names to offer: the configured models, and the default model of every provider that has a key."""
    names = [OUTRIDER]
    if config.default_runtime == REMOTE:
        return (OUTRIDER,)
    try:
        names += [choice.name for choice in choose_models(config, wires=plugins.names("models"))]
    except Refused:  # the configured model cannot be used; a request that names it gets the reason
        names.append(default_model(config).name)
    names += [
        f"{p.name}:{p.default_model}"
        for p in PROVIDERS
        if p.default_model and any(key in config.keys for key in p.key_variables)
    ]
    return tuple(dict.fromkeys(names))


def settings_for_model(config: Config, name: str) -> Mapping[str, str]:
    """The session settings that this name stands for: a runtime, or a model of the native runtime.

    `codex` is a runtime, `codex:gpt-5.5` that runtime with this model. Raises 404 for a name that cannot be used here.
    """
    if name.partition(":")[0] in runtime_names():
        try:
            runtime = parse_runtime(name)
            find_program(config, runtime.name)
        except Refused as error:
            raise _unusable(name, error) from error
        return runtime.settings
    model = _qualified_model(config, name)
    if not model:
        return {}
    return {"runtime": NATIVE} if model == _default(config) else {"runtime": NATIVE, "model": model}


def reported_model(settings: Mapping[str, str]) -> str:
    """The `model` of a response, for a session with these settings."""
    runtime = runtime_of(settings, NATIVE)
    return settings.get("model") or OUTRIDER if runtime.name == NATIVE else str(runtime)


def check_client_tools(settings: Mapping[str, str], default: str) -> None:
    """Raise 400 when the runtime of a session with these settings cannot use tools of the client."""
    name = runtime_of(settings, default).name
    if not takes_client_tools(name):
        message = f"{name} cannot use tools of its client: omit `tools`, or choose another model (`GET /v1/models`)"
        raise HttpError(400, message, "tools_not_used")


def _qualified_model(config: Config, name: str) -> str:
    """The model of this name, with its provider; empty for a name without a provider.

    Clients that cannot omit the name send any: such a name chooses nothing. A name with a provider must work. Raises
    404 when it does not.
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


class ModelView(Struct, frozen=True, kw_only=True):
    """A model in OpenAI's shape."""

    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str


class ModelList(Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: tuple[ModelView, ...]


@endpoint("GET", "/v1/models")
async def list_models(call: ApiCall) -> ModelList:
    """List the models and runtimes that a request may use; `outrider` is the configured one."""
    config = call.agent.config
    runtimes = [REMOTE] if config.default_runtime == REMOTE else available_runtimes(config)
    return ModelList(data=tuple(map(_render_model, (*known_models(config), *runtimes))))


@endpoint("GET", "/v1/models/{id:path}")
async def get_model(call: ApiCall, id: str) -> ModelView:
    """Get one model, if it can be used here."""
    config = call.agent.config
    if id in known_models(config) or (id != OUTRIDER and settings_for_model(config, id)):
        return _render_model(id)
    raise HttpError(404, f"there is no model {id[:100]!r}; `GET /v1/models` lists all models", "model_not_found")


def _render_model(name: str) -> ModelView:
    return ModelView(id=name, owned_by=name.partition(":")[0])


ENDPOINTS = (list_models, get_model)
