"""`/v1/models`: the names of models and runtimes that a request may use."""

from typing import Literal

from msgspec import Struct

from outrider.app.runtimes import available_runtimes
from outrider.channels.http.endpoints import ApiCall, endpoint
from outrider.channels.http.errors import HttpError
from outrider.channels.http.openai.model_names import OUTRIDER, known_models, settings_for_model


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
    return ModelList(data=tuple(map(_render_model, (*known_models(config), *available_runtimes(config)))))


@endpoint("GET", "/v1/models/{id:path}")
async def get_model(call: ApiCall, id: str) -> ModelView:
    """Get one model, if it can be used here."""
    config = call.agent.config
    if id in known_models(config) or (id != OUTRIDER and settings_for_model(config, id)):
        return _render_model(id)
    raise HttpError(404, f"there is no model {id[:100]!r}; `GET /v1/models` lists them", "model_not_found")


def _render_model(name: str) -> ModelView:
    return ModelView(id=name, owned_by=name.partition(":")[0])


ENDPOINTS = (list_models, get_model)
