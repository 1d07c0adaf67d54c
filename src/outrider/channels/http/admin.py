"""`/v1/config`, `/v1/people` and `/v1/keys`: what a key with the scope `admin` may see and do."""

from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import asdict
from starlette.responses import Response

from outrider.app.api import DEFAULT_PERSON
from outrider.channels.http.endpoints import ApiCall, endpoint, json_response
from outrider.channels.http.errors import HttpError
from outrider.config.schema import SettingReport, report_settings
from outrider.core.store_port import Key, KeyScope, KeySpec, Person
from outrider.store.keys import (
    KeyView,
    default_scopes,
    first_day,
    make_key,
    parse_spend,
    remove_first_key_file,
    render_key,
)


class SettingList(Struct, frozen=True):
    settings: list[SettingReport]


class PersonList(Struct, frozen=True):
    people: list[Person]
    """Latest active first."""


class KeyList(Struct, frozen=True):
    keys: list[KeyView]
    """Oldest first, revoked ones included."""


class NewKey(Struct, frozen=True, forbid_unknown_fields=True):
    """A key to create."""

    name: str
    person: str = DEFAULT_PERSON
    scopes: Annotated[
        Annotated[tuple[KeyScope, ...], Meta(min_length=1, max_length=4)] | None,
        Meta(description="what it may do; by default `chat` and `read`, and `approve` for the owner"),
    ] = None
    rate: Annotated[int, Meta(ge=1, le=1_000_000, description="requests a minute")] | None = None
    concurrent: Annotated[int, Meta(ge=1, le=100_000, description="requests at once")] | None = None
    spend: Annotated[str, Meta(description="dollars its turns may cost: `5/day`, `20/month`, or `5` in total")] = ""


class CreatedKey(KeyView, frozen=True):
    """A new key."""

    key: str
    """The key itself, shown only here."""


@endpoint("GET", "/v1/config", scope="admin")
async def show_settings(call: ApiCall) -> SettingList:
    """List every setting with its value and source; secrets are masked."""
    return SettingList(report_settings(call.agent.config))


@endpoint("GET", "/v1/people", scope="admin")
async def list_people(call: ApiCall) -> PersonList:
    """List everyone who has a session or a key, latest active first."""
    return PersonList(list(await call.agent.home.store.people()))


@endpoint("GET", "/v1/keys", scope="admin")
async def list_keys(call: ApiCall) -> KeyList:
    """List all keys without their secrets, oldest first."""
    return KeyList([await _render_key(call, key) for key in await call.agent.home.store.list_keys()])


@endpoint("POST", "/v1/keys", scope="admin", results={201: CreatedKey})
async def create_key(call: ApiCall, body: NewKey) -> Response:
    """Create a key; this is the only response that shows it."""
    scopes = tuple(dict.fromkeys(body.scopes or default_scopes(body.person)))
    spend = parse_spend(body.spend) if body.spend else None
    spec = KeySpec(body.name, body.person, scopes, body.rate, body.concurrent, spend)
    key, text = await make_key(call.agent.home.store, spec)
    created = CreatedKey(**asdict(await _render_key(call, key)), key=text)
    return json_response(created, 201, {"cache-control": "no-store"})


@endpoint("DELETE", "/v1/keys/{id}", scope="admin")
async def revoke_key(call: ApiCall, id: str) -> None:
    """Revoke a key permanently."""
    if not await call.agent.home.store.revoke_key(id):
        raise HttpError(404, f"there is no active key with the id {id[:100]!r}", "not_found")
    remove_first_key_file(call.agent.config.home, id)


async def _render_key(call: ApiCall, key: Key) -> KeyView:
    since = first_day(key.spec.spend, call.context.wall_clock())
    return render_key(key, await call.agent.home.store.spent(key.id, since))


ENDPOINTS = (show_settings, list_people, list_keys, create_key, revoke_key)
