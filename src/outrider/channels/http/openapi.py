"""The description of the API, made from the routes themselves and from the values they read and write."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

_REF = "#/components/schemas/{name}"
_PATH_PARAMETER = re.compile(r"{(\w+)(?::\w+)?}")
_JSON = "application/json"
_EVENTS = "text/event-stream"


class EndpointSpec(Struct, frozen=True, kw_only=True):
    """What one route takes and gives."""

    summary: str
    body: Any = None
    """The type of its JSON body, if it reads one."""
    query: Any = None
    """The type of its query: each field is a parameter."""
    headers: Mapping[str, str] = {}
    """Headers it reads, each with what it is for."""
    answer: Any = None
    """The type of what it gives; None for nothing, or for anything where `media` says more."""
    status: int = 200
    media: str = _JSON
    streams: bool = False
    """Whether it gives events instead, when asked to."""
    others: Mapping[int, Any] = {}
    """The types of what it gives with other statuses that are no errors in our error's shape."""
    needs_key: bool = True


class RouteOperation(Struct, frozen=True):
    """One operation where it is reached."""

    path: str
    method: str
    about: EndpointSpec


class ErrorDetail(Struct, frozen=True):
    """What went wrong, in the words of OpenAI's API."""

    message: str
    type: str
    code: str | None
    param: str | None


class ErrorResponse(Struct, frozen=True):
    """The body of every answer that is an error."""

    error: ErrorDetail
    request_id: str


def openapi_document(served: Sequence[RouteOperation], version: str) -> dict[str, Any]:
    """The OpenAPI description of these operations."""
    types = _types(served)
    found, components = msgspec.json.schema_components(types, schema_hook=_any_schema, ref_template=_REF)
    schemas = dict(zip(map(repr, types), found, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for each in served:
        path = _PATH_PARAMETER.sub(r"{\1}", each.path)
        paths.setdefault(path, {})[each.method.lower()] = _operation(each, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Outrider", "version": version},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _types(served: Sequence[RouteOperation]) -> list[Any]:
    """Every type that is read or written, once."""
    found: dict[str, Any] = {repr(ErrorResponse): ErrorResponse}
    for each in served:
        about = each.about
        found |= {repr(one): one for one in (about.body, about.answer, *about.others.values()) if one is not None}
    return list(found.values())


def _any_schema(kind: type) -> dict[str, Any]:
    """What is free in our values: a call's arguments, a tool's own schema."""
    return {}


def _operation(each: RouteOperation, schemas: Mapping[str, Any]) -> dict[str, Any]:
    about = each.about
    places = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PATH_PARAMETER.findall(each.path)
    ]
    headers = [
        {"name": name, "in": "header", "required": False, "description": what, "schema": {"type": "string"}}
        for name, what in about.headers.items()
    ]
    operation: dict[str, Any] = {
        "summary": about.summary,
        "security": [{"key": []}] if about.needs_key else [{}, {"key": []}],
        "parameters": [*places, *_parameters(about.query), *headers],
        "responses": {
            str(about.status): _response(about, schemas),
            **{str(status): _response_content({_JSON: schemas[repr(kind)]}) for status, kind in about.others.items()},
            "default": {"description": "an error", "content": {_JSON: {"schema": schemas[repr(ErrorResponse)]}}},
        },
    }
    if about.body is not None:
        is_needed = any(field.required for field in msgspec.structs.fields(about.body))
        content = {_JSON: {"schema": schemas[repr(about.body)]}}
        operation["requestBody"] = {"required": is_needed, "content": content}
    return operation


def _response(about: EndpointSpec, schemas: Mapping[str, Any]) -> dict[str, Any]:
    if about.status == 204:
        return {"description": "nothing"}
    schema: Any = {} if about.answer is None else schemas[repr(about.answer)]
    return _response_content({about.media: schema, **({_EVENTS: {}} if about.streams else {})})


def _response_content(contents: Mapping[str, Any]) -> dict[str, Any]:
    return {"description": "done", "content": {media: {"schema": schema} for media, schema in contents.items()}}


def _parameters(query: Any) -> list[dict[str, Any]]:
    """Each field of a query as a parameter."""
    if query is None:
        return []
    _, components = msgspec.json.schema_components([query], ref_template=_REF)
    whole = components[query.__name__]
    return [
        {
            "name": name,
            "in": "query",
            "required": name in whole["required"],
            **({"description": schema.pop("description")} if "description" in schema else {}),
            "schema": schema,
        }
        for name, schema in whole["properties"].items()
    ]
