"""`/v1/models`: the names a request may choose a model by."""

from typing import Literal

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from outrider.app.runtimes import available_runtimes
from outrider.channels.http.endpoints import EndpointSpec, json_response, route
from outrider.channels.http.errors import HttpError
from outrider.channels.http.inputs import agent_of
from outrider.channels.http.openai.model_names import OUTRIDER, known_models, settings_for_model


class ModelView(Struct, frozen=True, kw_only=True):
    """One model, in OpenAI's shape."""

    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str


class ModelList(Struct, frozen=True, kw_only=True):
    """The models there are."""

    object: Literal["list"] = "list"
    data: tuple[ModelView, ...]


def _render_model(name: str) -> ModelView:
    return ModelView(id=name, owned_by=name.partition(":")[0])


async def list_models(request: Request) -> Response:
    """The names a request may choose a model by, and the runtimes that seem to be usable; nothing is started.

    `outrider` is whatever this home is set to.
    """
    config = agent_of(request).config
    return json_response(
        ModelList(data=tuple(map(_render_model, (*known_models(config), *available_runtimes(config)))))
    )


async def find_model(request: Request) -> Response:
    """One model, if it can be used here."""
    name, config = request.path_params["id"], agent_of(request).config
    if name in known_models(config) or (name != OUTRIDER and settings_for_model(config, name)):
        return json_response(_render_model(name))
    raise HttpError(404, f"there is no model {name[:100]!r}; `GET /v1/models` lists them", "model_not_found")


ROUTES = (
    route(
        "/v1/models",
        list_models,
        "GET",
        about=EndpointSpec(
            summary="The names a request may choose a model by; runtimes such as `codex` among them.",
            answer=ModelList,
        ),
    ),
    route(
        "/v1/models/{id:path}",
        find_model,
        "GET",
        about=EndpointSpec(summary="One model, if it is known.", answer=ModelView),
    ),
)
