"""`outrider resume`: finishes the turns that a crash or a shutdown interrupted, and prints the result of each."""

from functools import partial

import anyio
import click

from outrider.app.api import AgentApi, OpenMode
from outrider.cli.commands import DONE, FAILED
from outrider.cli.output import check_text, print_json, print_line, render_turn_result, warn
from outrider.cli.questions import print_pending, wait_or_suspend
from outrider.cli.setup import open_config, open_home, run_async
from outrider.config.schema import Config
from outrider.core.errors import Refused, Unavailable
from outrider.core.store_port import Session
from outrider.core.turn_result import TurnResult


@click.command("resume")
@click.argument("session", default="")
@click.option("--json", "is_json", is_flag=True, help="Print one line of JSON for each session.")
def command(session: str, is_json: bool) -> int:
    """Finish turns that a crash or a shutdown interrupted, in SESSION or in all sessions.

    A turn that waits for an answer is not finished: its question is printed, and the exit code is 1. Ctrl-C leaves the
    remaining turns to be resumed later.
    """
    check_text(session, "the session's name")
    return run_async(partial(_resume, open_config(), session, is_json))


async def _resume(config: Config, name: str, is_json: bool) -> int:
    async with open_home(config, OpenMode("outrider resume", "own")) as agent:
        if mismatch := agent.owner_mismatch({}):
            warn(mismatch)
        if name:
            session = await agent.find_by_prefix(name)
            sessions = [session] if session.has_work else []
        else:
            sessions = list(await agent.resume_all())
        if not sessions and not is_json:
            print_line(f"no unfinished turns in {name}" if name else "no unfinished turns")
        # A list, not a generator: every session is waited for, even after one has failed.
        try:
            are_done = [await _finish(agent, session, is_json) for session in sessions]
        except anyio.get_cancelled_exc_class():
            warn("some turns are still unfinished; to finish them: outrider resume")
            raise
        return DONE if all(are_done) else FAILED


async def _finish(agent: AgentApi, session: Session, is_json: bool) -> bool:
    try:
        # The last entry counts: beside a running owner, a turn that waits for an answer gets no new one.
        result = await wait_or_suspend(agent, session, session.head - 1)
    except (Refused, Unavailable) as error:
        warn(f"{session.name}: {error}")
        return False
    if result is None:
        return True
    if not isinstance(result, TurnResult):
        print_pending(session, result)
        return False
    if is_json:
        print_json(render_turn_result(result, session))
    else:
        print_line(f"[{session.name}]\n{result.text}\n" if result.text else f"[{session.name}]\n")
    if result.outcome != "done":
        warn(f"{session.name}: {result.outcome}: {result.error}")
    return result.outcome == "done"
