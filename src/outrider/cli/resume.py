"""`outrider resume`: finishes what a crash or a shutdown left unfinished, and tells what came of each."""

from functools import partial

import anyio
import click

from outrider.app.api import AgentApi, OpenMode
from outrider.cli.commands import DONE, FAILED
from outrider.cli.output import check_text, encode_json, print_line, render_turn_result, warn
from outrider.cli.questions import deny_unanswerable, print_pending, wait_or_suspend
from outrider.cli.setup import SignalWatch, open_config, open_home, run_async
from outrider.config.schema import Config
from outrider.core.errors import Refused, Unavailable
from outrider.core.store_port import Session
from outrider.core.turn_result import TurnResult


@click.command("resume")
@click.argument("session", default="")
@click.option("--json", "is_json", is_flag=True, help="Print one JSON line for each session.")
def command(session: str, is_json: bool) -> int:
    """Finish what a crash or a shutdown left unfinished, in all sessions or in one.

    A turn that waits for an answer is told with its question, and counts as not finished. Ctrl-C leaves the turns as
    they are, to be taken up again.
    """
    check_text(session, "the session's name")
    config = open_config()
    return run_async(partial(_resume, config, session, is_json))


async def _resume(config: Config, name: str, is_json: bool, halt: SignalWatch) -> int:
    async with open_home(config, OpenMode("outrider resume", "own")) as agent:
        if told := agent.owner_mismatch({}):
            warn(told)
        if name:
            found = await agent.find_by_prefix(name)
            waiting = [found] if found.has_work else []
        else:
            waiting = list(await agent.resume_all())
        if not waiting and not is_json:
            print_line(f"nothing is unfinished in {name}" if name else "nothing is unfinished")
        # A list, not a generator: every session is waited for, whatever came of the others.
        try:
            are_done = [await _finish(agent, session, is_json) for session in waiting]
        except anyio.get_cancelled_exc_class():
            warn("what is unfinished stays so: outrider resume takes it up again")
            raise
        return DONE if all(are_done) else FAILED


async def _finish(agent: AgentApi, session: Session, is_json: bool) -> bool:
    try:
        await deny_unanswerable(agent, session)
        outcome = await wait_or_suspend(agent, session)
    except (Refused, Unavailable) as error:
        warn(f"{session.name}: {error}")
        return False
    if outcome is None:
        return True
    if not isinstance(outcome, TurnResult):
        print_pending(session, outcome)
        return False
    if is_json:
        print_line(encode_json(render_turn_result(outcome, session)))
    else:
        print_line(f"[{session.name}]\n{outcome.text}\n" if outcome.text else f"[{session.name}]\n")
    if outcome.outcome != "done":
        warn(f"{session.name}: {outcome.outcome}: {outcome.error}")
    return outcome.outcome == "done"
