"""`outrider grants`: what was allowed for a whole session or workspace, and taking it back."""

from functools import partial

import click
import msgspec

from outrider.app.acting import ReadOnlyApi
from outrider.app.presence import OpenMode
from outrider.cli.beside import open_read_only
from outrider.cli.lines import encode_json
from outrider.cli.opening import SignalWatch, open_config, open_home, run_async
from outrider.cli.plain import check_text, one_line, print_line
from outrider.cli.root import DONE
from outrider.cli.task_lines import format_table
from outrider.cli.transcript import format_time
from outrider.config.load import Config
from outrider.core.approve import Permission
from outrider.core.errors import Refused

_PERMISSIONS_LABEL = "outrider grants"


@click.group("grants")
def permissions_command() -> None:
    """List what you allowed for a session or a workspace, and take it back."""


@permissions_command.command("list")
@click.option("--json", "is_json", is_flag=True, help="Print JSON.")
def list_permissions(is_json: bool) -> int:
    """Everything that is allowed without asking again."""
    config = open_config()

    async def carry(halt: SignalWatch) -> int:
        async with open_read_only(config, _PERMISSIONS_LABEL) as looking:
            found = await looking.permissions()
            rows = [("GRANT", "NEED", "IN", "SINCE")]
            rows += [
                (grant.id, one_line(grant.need), await _scope_text(looking, grant), format_time(grant.created))
                for grant in found
            ]
        if is_json:
            print_line(encode_json([msgspec.to_builtins(grant) for grant in found], is_pretty=True))
        else:
            print_line("\n".join(format_table(rows)) if found else "nothing was allowed for longer than one call")
        return DONE

    return run_async(carry)


async def _scope_text(looking: ReadOnlyApi, grant: Permission) -> str:
    if grant.scope != "session":
        return one_line(grant.applies_to)
    try:
        return f"session {one_line((await looking.find(grant.applies_to)).name)}"
    except Refused:  # it was deleted meanwhile
        return f"session {one_line(grant.applies_to)}"


@permissions_command.command("forget")
@click.argument("grant")
def forget_permission(grant: str) -> int:
    """Take a grant back: from now on it is asked for again. GRANT is an id, or the beginning of one."""
    check_text(grant, "the grant's id")
    return run_async(partial(_forget_permission, open_config(), grant))


async def _forget_permission(config: Config, name: str, halt: SignalWatch) -> int:
    async with open_home(config, OpenMode(_PERMISSIONS_LABEL, "none")) as agent:
        found = [grant for grant in await agent.permissions() if name and grant.id.startswith(name)]
        exact = [grant for grant in found if grant.id == name] or found
        if len(exact) != 1:
            what = f"{len(found)} grants begin with {name!r}" if found else f"there is no grant {name!r}"
            raise Refused(f"{what}; `outrider grants list` shows them")
        await agent.revoke_permission(exact[0].id)
        print_line(f"{exact[0].need} is asked for again in {exact[0].applies_to}")
    return DONE
