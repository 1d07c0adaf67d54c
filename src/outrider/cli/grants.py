"""`outrider grants`: what was allowed for a whole session or workspace, and taking it back."""

from functools import partial

import click
import msgspec

from outrider.app.acting import ReadOnlyApi
from outrider.app.presence import OpenMode
from outrider.cli.beside import open_looking
from outrider.cli.lines import encode
from outrider.cli.opening import Halt, carry_out, open_config, open_here
from outrider.cli.plain import check_text, one_line, say
from outrider.cli.root import DONE
from outrider.cli.task_lines import aligned
from outrider.cli.transcript import moment
from outrider.config.load import Config
from outrider.core.approve import Permission
from outrider.core.errors import Refused

_LABEL = "outrider grants"


@click.group("grants")
def command() -> None:
    """List what you allowed for a session or a workspace, and take it back."""


@command.command("list")
@click.option("--json", "is_json", is_flag=True, help="Print JSON.")
def list_grants(is_json: bool) -> int:
    """Everything that is allowed without asking again."""
    config = open_config()

    async def carry(halt: Halt) -> int:
        async with open_looking(config, _LABEL) as looking:
            found = await looking.permissions()
            rows = [("GRANT", "NEED", "IN", "SINCE")]
            rows += [
                (grant.id, one_line(grant.need), await _place(looking, grant), moment(grant.created)) for grant in found
            ]
        if is_json:
            say(encode([msgspec.to_builtins(grant) for grant in found], is_pretty=True))
        else:
            say("\n".join(aligned(rows)) if found else "nothing was allowed for longer than one call")
        return DONE

    return carry_out(carry)


async def _place(looking: ReadOnlyApi, grant: Permission) -> str:
    if grant.scope != "session":
        return one_line(grant.applies_to)
    try:
        return f"session {one_line((await looking.find(grant.applies_to)).name)}"
    except Refused:  # it was deleted meanwhile
        return f"session {one_line(grant.applies_to)}"


@command.command("forget")
@click.argument("grant")
def forget(grant: str) -> int:
    """Take a grant back: from now on it is asked for again. GRANT is an id, or the beginning of one."""
    check_text(grant, "the grant's id")
    return carry_out(partial(_forget, open_config(), grant))


async def _forget(config: Config, name: str, halt: Halt) -> int:
    async with open_here(config, OpenMode(_LABEL, "none")) as agent:
        found = [grant for grant in await agent.permissions() if name and grant.id.startswith(name)]
        exact = [grant for grant in found if grant.id == name] or found
        if len(exact) != 1:
            what = f"{len(found)} grants begin with {name!r}" if found else f"there is no grant {name!r}"
            raise Refused(f"{what}; `outrider grants list` shows them")
        await agent.revoke_permission(exact[0].id)
        say(f"{exact[0].need} is asked for again in {exact[0].applies_to}")
    return DONE
