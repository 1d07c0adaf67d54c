"""What an administrator sees and does over HTTP: settings, people, keys. Every route needs the scope `admin`."""

from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import asdict
from starlette.requests import Request
from starlette.responses import Response

from outrider.app.agent import Agent
from outrider.app.api import DEFAULT_PERSON
from outrider.channels.http.endpoints import EndpointSpec, json_response, parse_body, route
from outrider.channels.http.errors import HttpError
from outrider.channels.http.inputs import agent_of, context
from outrider.config.schema import SettingReport, report_settings
from outrider.core.store_port import Key, KeyScope, KeySpec, Person
from outrider.store.keys import KeyView, first_day, make_key, parse_spend, remove_first_key_file, render_key


class SettingList(Struct, frozen=True):
    settings: list[SettingReport]


class PersonList(Struct, frozen=True):
    people: list[Person]
    """Latest active first."""


class KeyList(Struct, frozen=True):
    keys: list[KeyView]
    """All that ever were, the oldest first."""


class NewKey(Struct, frozen=True, forbid_unknown_fields=True):
    """A key to make."""

    name: str
    person: str = DEFAULT_PERSON
    scopes: Annotated[tuple[KeyScope, ...], Meta(min_length=1, max_length=3)] = ("chat", "read")
    rate: Annotated[int, Meta(ge=1, le=1_000_000, description="requests a minute")] | None = None
    concurrent: Annotated[int, Meta(ge=1, le=100_000, description="requests at once")] | None = None
    spend: Annotated[str, Meta(description="dollars its turns may cost: `5/day`, `20/month`, or `5` in all")] = ""


class CreatedKey(KeyView, frozen=True):
    """A new key."""

    key: str
    """The key itself, shown this once."""


async def show_settings(request: Request) -> Response:
    return json_response(SettingList(report_settings(_admin_agent(request).config)))


async def list_people(request: Request) -> Response:
    return json_response(PersonList(list(await _admin_agent(request).home.store.people())))


async def list_keys(request: Request) -> Response:
    keys = _admin_agent(request).home.store
    return json_response(KeyList([await _render_key(request, key) for key in await keys.list_keys()]))


async def create_key(request: Request) -> Response:
    agent = _admin_agent(request)
    wish = await parse_body(request, NewKey)
    scopes = tuple(dict.fromkeys(wish.scopes))
    spend = parse_spend(wish.spend) if wish.spend else None
    key, text = await make_key(
        agent.home.store, KeySpec(wish.name, wish.person, scopes, wish.rate, wish.concurrent, spend)
    )
    made = json_response(CreatedKey(**asdict(await _render_key(request, key)), key=text), 201)
    made.headers["cache-control"] = "no-store"
    return made


async def revoke_key(request: Request) -> Response:
    agent, id = _admin_agent(request), request.path_params["id"]
    if not await agent.home.store.revoke_key(id):
        raise HttpError(404, f"no key with the id {id[:100]!r} holds", "not_found")
    remove_first_key_file(agent.config.home, id)
    return Response(status_code=204)


def _admin_agent(request: Request) -> Agent:
    return agent_of(request, "admin")


async def _render_key(request: Request, key: Key) -> KeyView:
    here = context(request)
    return render_key(key, await here.agent.home.store.spent(key.id, first_day(key.spec.spend, here.wall_clock())))


ROUTES = (
    route(
        "/v1/config",
        show_settings,
        "GET",
        about=EndpointSpec(summary="Every setting and where its value comes from; secrets masked", answer=SettingList),
    ),
    route(
        "/v1/people",
        list_people,
        "GET",
        about=EndpointSpec(summary="Everybody who has a session or a key, latest active first", answer=PersonList),
    ),
    route(
        "/v1/keys",
        list_keys,
        "GET",
        about=EndpointSpec(summary="Every key that was made, without its secret, the oldest first", answer=KeyList),
    ),
    route(
        "/v1/keys",
        create_key,
        "POST",
        about=EndpointSpec(summary="Make a key; it is shown this once", body=NewKey, answer=CreatedKey, status=201),
    ),
    route(
        "/v1/keys/{id}",
        revoke_key,
        "DELETE",
        about=EndpointSpec(summary="Make a key open nothing from now on, for good", status=204),
    ),
)
