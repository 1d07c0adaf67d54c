"""`outrider asks`: the questions that wait for a person, and the answers to them."""

from collections.abc import Sequence
from functools import partial

import click
import msgspec

from outrider.app.acting import ReadOnlyApi
from outrider.app.presence import OpenMode
from outrider.cli.beside import open_looking
from outrider.cli.lines import Json, encode, render_finished
from outrider.cli.opening import Halt, carry_out, open_config, open_here
from outrider.cli.plain import check_text, notice, printable, say
from outrider.cli.questions import Waiting, how_to_answer, tell_waiting, wait_or_park
from outrider.cli.root import DONE, FAILED, STOPPED
from outrider.config.load import Config
from outrider.core.approve import ANSWERS
from outrider.core.errors import Refused
from outrider.core.events import Asked
from outrider.core.outcome import TurnResult
from outrider.core.ports import Session

_LABEL = "outrider asks"
_SHORTEST = 6
"""Characters of a question's id that stand for all of it."""
_JSON = click.option("--json", "is_json", is_flag=True, help="Print JSON.")


@click.group("asks", invoke_without_command=True)
@_JSON
@click.pass_context
def command(ctx: click.Context, is_json: bool) -> int:
    """List the questions that wait for you, and answer them."""
    return DONE if ctx.invoked_subcommand else _list(is_json)


@command.command("list")
@_JSON
def list_asks(is_json: bool) -> int:
    """Every question that waits, the longest waiting first."""
    return _list(is_json)


def _list(is_json: bool) -> int:
    config = open_config()

    async def carry(halt: Halt) -> int:
        async with open_looking(config, _LABEL) as looking:
            found = await _waiting(looking)
        if is_json:
            say(encode([_render(each) for each in found], is_pretty=True))
        elif not found:
            say("nothing waits for an answer")
        for each in () if is_json else found:
            say(f"{each.name}  session {each.session.name}")
            say("".join(f"  {line}\n" for line in printable(each.asked.question).splitlines()) + f"  {_how(each)}\n")
        return DONE

    return carry_out(carry)


def _how(waiting: Waiting) -> str:
    return f"→ {how_to_answer(waiting)}"


def _render(waiting: Waiting) -> Json:
    asked: Json = msgspec.to_builtins(waiting.asked)
    asked.pop("type")
    return {"id": waiting.name, "session": waiting.session.id, "name": waiting.session.name, **asked}


async def _waiting(looking: ReadOnlyApi) -> list[Waiting]:
    found = [session for session in await looking.unfinished() if session.is_open]
    return [Waiting(session, asked) for session in found for asked in await looking.questions(session)]


@command.command("answer")
@click.argument("ask")
@click.argument("answer", type=click.Choice(ANSWERS))
@click.option("--no-wait", "is_brief", is_flag=True, help="Only write the answer down; `outrider resume` goes on.")
@_JSON
def answer(ask: str, answer: str, is_brief: bool, is_json: bool) -> int:
    """Answer a question, carry its turn to the end and print the reply.

    ASK is an id as `outrider asks` shows it, or six characters or more of its beginning. The answer: allow it once, in
    this session or in this workspace from now on, or no.
    """
    check_text(ask, "the question's id")
    config = open_config()
    return carry_out(partial(_note if is_brief else _answer, config, ask, answer, is_json))


async def _note(config: Config, ask: str, answer: str, is_json: bool, halt: Halt) -> int:
    async with open_here(config, OpenMode(_LABEL, "none")) as agent:
        waiting = _pick(await _waiting(agent), ask)
        await agent.answer(waiting.session, waiting.asked, answer)
        is_carried = agent.is_client
    goes_on = "the turn goes on" if is_carried else f"outrider resume {waiting.session.name} goes on"
    notice(f"answered {answer}: {goes_on}")
    return DONE


async def _answer(config: Config, ask: str, answer: str, is_json: bool, halt: Halt) -> int:
    async with open_here(config, OpenMode(_LABEL, "own")) as agent:
        waiting = _pick(await _waiting(agent), ask)
        await agent.answer(waiting.session, waiting.asked, answer)
        found = await wait_or_park(agent, waiting.session)
    return _report(found, waiting.session, is_json)


def _report(found: TurnResult | Sequence[Asked] | None, session: Session, is_json: bool) -> int:
    if found is None:
        return DONE
    if not isinstance(found, TurnResult):
        tell_waiting(session, found)
        return FAILED
    say(encode(render_finished(found, session)) if is_json else found.text)
    if found.error:
        notice(found.error)
    return {"done": DONE, "failed": FAILED, "interrupted": STOPPED}[found.outcome]


def _pick(waiting: Sequence[Waiting], name: str) -> Waiting:
    matching = [each for each in waiting if name in (each.name, each.asked.ask)]
    matching = matching or [each for each in waiting if len(name) >= _SHORTEST and each.name.startswith(name)]
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise Refused(f"{len(matching)} questions begin with {name!r}; `outrider asks list` shows them")
    raise Refused(f"no question {name!r} waits; `outrider asks list` shows those that do")
