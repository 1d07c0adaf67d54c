"""`outrider key`: show the first API key and how to use it; create, list and revoke keys."""

import sys
from collections.abc import Sequence
from typing import TypedDict, Unpack, get_args

import click
from msgspec.structs import asdict

from outrider.app.api import DEFAULT_PERSON, OpenMode
from outrider.cli.commands import DONE, JSON_OPTION
from outrider.cli.output import check_text, format_table, format_time, now_ms, one_line, print_json, print_line, warn
from outrider.cli.service import find_running_server
from outrider.cli.setup import open_config, open_home, open_read_only, run_async
from outrider.config.schema import Config
from outrider.config.secrets import resolve_secret
from outrider.core.errors import Refused
from outrider.core.store_port import Key, KeyScope, KeySpec
from outrider.store.keys import (
    default_scopes,
    first_day,
    first_key_file,
    make_key,
    parse_spend,
    remove_first_key_file,
    render_key,
    render_limit,
    split_key,
)

_LABEL = "outrider key"
_SCOPES: tuple[KeyScope, ...] = get_args(KeyScope)


class KeyLimits(TypedDict):
    """The limits of a key, by the names of click's parameters."""

    rate: int | None
    concurrent: int | None
    spend: str


@click.group("key", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> int:
    """Show the API key and how to use it; create, list and revoke keys.

    Only the key is printed on stdout: curl -H "Authorization: Bearer $(outrider key)" …
    """
    return DONE if ctx.invoked_subcommand else _print_first_key(open_config())


def _print_first_key(config: Config) -> int:
    text = _read_first_key(config)

    async def act() -> None:
        async with open_read_only(config, _LABEL) as agent:
            if not text:
                raise _no_key_error(await agent.list_keys())
            parts = split_key(text)
            key = await agent.find_key(parts[0]) if parts else None
        if key is None or key.revoked:
            raise Refused(
                f"the key in {first_key_file(config.home)} is not valid; create one with `outrider key create NAME`"
            )
        print_line(text)
        if not sys.stdout.isatty():  # The key is used in another command; hints would clutter its terminal.
            return
        server = find_running_server(config.home)
        address = server.url if server else f"http://{config.http.host}:{config.http.port}"
        warn(f'try it: curl -H "Authorization: Bearer $(outrider key)" {address}/v1/models')
        warn(f"for an OpenAI client, use it as the API key with {address}/v1 as the base URL; never put it in a URL")

    return run_async(act)


def _read_first_key(config: Config) -> str:
    """The key that the first start created, or an empty text. Raises Refused when it must not be shown."""
    path = first_key_file(config.home)
    if path.exists():
        return resolve_secret("the key", f"file:{path}", {}).reveal()
    if "OUTRIDER_API_KEY" in config.keys:
        raise Refused("there is no stored key to show; OUTRIDER_API_KEY is set: send its value as a bearer token")
    return ""


def _no_key_error(keys: Sequence[Key]) -> Refused:
    if any(not key.revoked for key in keys):
        return Refused(
            "there is no stored key to show: a key is shown only when it is created; "
            "`outrider key list` lists your keys, `outrider key create NAME` creates one"
        )
    return Refused("there is no key yet: `outrider up` creates the first one, `outrider key create NAME` another")


@command.command("create")
@click.argument("name")
@click.option("--person", default=DEFAULT_PERSON, show_default=True, help="Give access to this person's sessions.")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    type=click.Choice(_SCOPES),
    help="Allow this kind of request; may be repeated. By default chat and read, and approve for your own keys.",
)
@click.option("--rate", type=click.IntRange(1, 1_000_000), help="Limit requests per minute.")
@click.option("--concurrent", type=click.IntRange(1, 100_000), help="Limit concurrent requests.")
@click.option("--spend", default="", metavar="DOLLARS", help="Limit the cost: 5/day, 20/month, or 5 in total.")
@JSON_OPTION
def create(name: str, person: str, scopes: tuple[KeyScope, ...], is_json: bool, **limits: Unpack[KeyLimits]) -> int:
    """Create a key and print it on stdout.

    The key cannot be shown again: Outrider stores only a digest of it.
    """
    check_text(name, "the key's name")
    check_text(person, "the person's name")
    config = open_config()
    spend = parse_spend(limits["spend"]) if limits["spend"] else None
    scopes = tuple(dict.fromkeys(scopes)) or default_scopes(person)
    spec = KeySpec(name, person, scopes, limits["rate"], limits["concurrent"], spend)

    async def act() -> None:
        async with open_home(config, OpenMode(_LABEL, "none")) as agent:
            key, text = await make_key(agent, spec)
        if is_json:
            print_json({**asdict(render_key(key, 0.0)), "key": text}, is_pretty=True)
            return
        print_line(text)
        warn(f"this is key {key.id} ({one_line(name)}); copy it now, it cannot be shown again")

    return run_async(act)


@command.command("list")
@JSON_OPTION
def list_keys(is_json: bool) -> int:
    """List all keys, oldest first. The keys themselves are not shown."""
    config = open_config()

    async def act() -> None:
        async with open_read_only(config, _LABEL) as agent:
            now = now_ms()
            keys = [(key, await agent.spent(key.id, first_day(key.spec.spend, now))) for key in await agent.list_keys()]
        if is_json:
            print_json([render_key(key, spent) for key, spent in keys], is_pretty=True)
        elif keys:
            rows = [("NAME", "ID", "PERSON", "SCOPES", "CREATED", "LAST USED", "SPENT", "STATE")]
            print_line("\n".join(format_table([*rows, *(_row(key, spent) for key, spent in keys)])))
        else:
            print_line("no keys yet: `outrider up` creates the first one, `outrider key create NAME` another")

    return run_async(act)


def _row(key: Key, spent: float) -> tuple[str, ...]:
    limit = key.spec.spend
    return (
        one_line(key.spec.name),
        key.id,
        one_line(key.spec.person),
        ", ".join(key.spec.scopes),
        format_time(key.created),
        format_time(key.used) if key.used else "never",
        f"${spent:.2f}" + (f" of {render_limit(limit)}" if limit else ""),
        f"revoked {format_time(key.revoked)}" if key.revoked else "active",
    )


@command.command("revoke")
@click.argument("key")
def revoke(key: str) -> int:
    """Revoke a key permanently. KEY is its name or its id."""
    check_text(key, "the key's name")
    config = open_config()

    async def act() -> None:
        async with open_home(config, OpenMode(_LABEL, "none")) as agent:
            active = [each for each in await agent.list_keys() if not each.revoked]
            match = next((each for each in active if each.id == key), None)
            match = match or next((each for each in active if each.spec.name == key), None)
            if match is None:
                raise Refused(f"there is no active key {one_line(key)!r}; `outrider key list` shows all keys")
            await agent.revoke_key(match.id)
        remove_first_key_file(config.home, match.id)
        print_line(f"revoked {one_line(match.spec.name)} ({match.id})")

    return run_async(act)
