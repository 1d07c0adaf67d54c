"""`outrider key`: the key to the API and how to use it; making, listing and revoking keys."""

import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypedDict, Unpack, get_args

import click
from msgspec.structs import asdict

from outrider.app.api import DEFAULT_PERSON, OpenMode
from outrider.cli.commands import DONE
from outrider.cli.output import check_text, encode_json, format_table, format_time, one_line, print_line, warn
from outrider.cli.service import find_running_server
from outrider.cli.setup import SignalWatch, open_config, open_home, open_read_only, run_async
from outrider.config.schema import Config
from outrider.config.secrets import resolve_secret
from outrider.core.errors import Refused
from outrider.core.store_port import Key, KeyScope, KeySpec
from outrider.store.keys import (
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
_JSON = click.option("--json", "is_json", is_flag=True, help="Print JSON.")
_COLUMNS = ("NAME", "ID", "PERSON", "SCOPES", "CREATED", "LAST USED", "SPENT", "STATE")
_SCOPES: tuple[KeyScope, ...] = get_args(KeyScope)


class KeyLimits(TypedDict):
    """What a key may use, as it is typed."""

    rate: int | None
    concurrent: int | None
    spend: str


def _run(act: Callable[[], Awaitable[None]]) -> int:
    async def carry(halt: SignalWatch) -> int:
        await act()
        return DONE

    return run_async(carry)


@click.group("key", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> int:
    """Show the key to the API and how to use it; make, list and revoke keys.

    The key alone goes to stdout: curl -H "Authorization: Bearer $(outrider key)" …
    """
    return DONE if ctx.invoked_subcommand else _print_first_key(open_config())


def _print_first_key(config: Config) -> int:
    text = _read_first_key(config)

    async def act() -> None:
        async with open_read_only(config, _LABEL) as reads:
            if not text:
                raise _no_key_error(await reads.list_keys())
            parts = split_key(text)
            found = await reads.find_key(parts[0]) if parts else None
        if found is None or found.revoked:
            raise Refused(
                f"the key in {first_key_file(config.home)} holds no longer; make one with `outrider key create NAME`"
            )
        print_line(text)
        if not sys.stdout.isatty():  # it goes into a command, whose terminal these lines would only clutter
            return
        up = find_running_server(config.home)
        address = up.url if up else f"http://{config.http.host}:{config.http.port}"
        warn(f'try it: curl -H "Authorization: Bearer $(outrider key)" {address}/v1/models')
        warn(f"OpenAI clients take it as their API key, with {address}/v1 as their base URL; never put it into a URL")

    return _run(act)


def _read_first_key(config: Config) -> str:
    """The key that was made at the first run; empty when there is none. Raises Refused when it cannot be shown."""
    path = first_key_file(config.home)
    if path.exists():
        return resolve_secret("the key", f"file:{path}", {}).reveal()
    if "OUTRIDER_API_KEY" in config.keys:
        raise Refused("there is no key to show, but the value of OUTRIDER_API_KEY is one: send it as a bearer token")
    return ""


def _no_key_error(keys: Sequence[Key]) -> Refused:
    if any(not key.revoked for key in keys):
        return Refused(
            "there is no key to show: a key is shown when it is made, and not kept; "
            "`outrider key list` lists yours, `outrider key create NAME` makes another"
        )
    return Refused("there is no key to show: `outrider up` makes the first one, `outrider key create NAME` another")


@command.command("create")
@click.argument("name")
@click.option("--person", default=DEFAULT_PERSON, show_default=True, help="Whose sessions and tasks it opens.")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    type=click.Choice(_SCOPES),
    default=("chat", "read"),
    show_default=True,
    help="What it may do; may be given several times.",
)
@click.option("--rate", type=click.IntRange(1, 1_000_000), help="Requests a minute.")
@click.option("--concurrent", type=click.IntRange(1, 100_000), help="Requests at once.")
@click.option("--spend", default="", metavar="DOLLARS", help="What its turns may cost: 5/day, 20/month, or 5 in all.")
@_JSON
def create(name: str, person: str, scopes: tuple[KeyScope, ...], is_json: bool, **bounds: Unpack[KeyLimits]) -> int:
    """Make a key. It is shown this once, alone on stdout; only a digest of it is kept."""
    check_text(name, "the key's name")
    check_text(person, "the person's name")
    config = open_config()
    spend = parse_spend(bounds["spend"]) if bounds["spend"] else None
    wish = KeySpec(name, person, tuple(dict.fromkeys(scopes)), bounds["rate"], bounds["concurrent"], spend)

    async def act() -> None:
        async with open_home(config, OpenMode(_LABEL, "none")) as store:
            key, text = await make_key(store, wish)
        if is_json:
            print_line(encode_json({**asdict(render_key(key, 0.0)), "key": text}, is_pretty=True))
            return
        print_line(text)
        warn(f"this is key {key.id} ({one_line(name)}); it cannot be shown again, so keep it now")

    return _run(act)


@command.command("list")
@_JSON
def list_keys(is_json: bool) -> int:
    """Every key that was made, the oldest first. The keys themselves are not kept, so none is shown."""
    config = open_config()

    async def act() -> None:
        async with open_read_only(config, _LABEL) as reads:
            now = time.time_ns() // 1_000_000
            found = [
                (key, await reads.spent(key.id, first_day(key.spec.spend, now))) for key in await reads.list_keys()
            ]
        if is_json:
            print_line(encode_json([asdict(render_key(key, spent)) for key, spent in found], is_pretty=True))
        elif found:
            print_line("\n".join(format_table([_COLUMNS, *(_row(key, spent) for key, spent in found)])))
        else:
            print_line("there are no keys yet: `outrider up` makes the first one, `outrider key create NAME` another")

    return _run(act)


@command.command("revoke")
@click.argument("key")
def revoke(key: str) -> int:
    """Make a key open nothing from now on, for good. KEY is its name or its id."""
    check_text(key, "the key's name")
    config = open_config()

    async def act() -> None:
        async with open_home(config, OpenMode(_LABEL, "none")) as store:
            held = [each for each in await store.list_keys() if not each.revoked]
            found = next((each for each in held if each.id == key), None)
            found = found or next((each for each in held if each.spec.name == key), None)
            if found is None:
                raise Refused(f"no key {one_line(key)!r} holds; `outrider key list` shows them")
            await store.revoke_key(found.id)
        remove_first_key_file(config.home, found.id)
        print_line(f"{one_line(found.spec.name)} ({found.id}) opens nothing any more")

    return _run(act)


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
        f"revoked {format_time(key.revoked)}" if key.revoked else "holds",
    )
