"""`outrider asks`: the questions that wait for a person, and the answers to them."""

from collections.abc import Sequence
from functools import partial

import click
import msgspec

from outrider.app.acting import ReadOnlyApi
from outrider.app.presence import OpenMode
from outrider.cli.beside import open_read_only
from outrider.cli.lines import Json, encode_json, render_turn_result
from outrider.cli.opening import SignalWatch, open_config, open_home, run_async
from outrider.cli.plain import check_text, print_line, printable, warn
from outrider.cli.questions import PendingQuestion, answer_command, print_pending, wait_or_suspend
from outrider.cli.root import DONE, FAILED, STOPPED
from outrider.config.load import Config
from outrider.core.approve import ANSWERS
from outrider.core.errors import Refused
from outrider.core.events import Asked
from outrider.core.outcome import TurnResult
from outrider.core.ports import Session

_QUESTIONS_LABEL = "outrider asks"
_MIN_ID_PREFIX = 6
"""Characters of a question's id that stand for all of it."""
_JSON = click.option("--json", "is_json", is_flag=True, help="Print JSON.")


@click.group("asks", invoke_without_command=True)
@_JSON
@click.pass_context
def command(ctx: click.Context, is_json: bool) -> int:
    """List the questions that wait for you, and answer them."""
    return DONE if ctx.invoked_subcommand else _print_questions(is_json)


@command.command("list")
@_JSON
def list_questions(is_json: bool) -> int:
    """Every question that waits, the longest waiting first."""
    return _print_questions(is_json)


def _print_questions(is_json: bool) -> int:
    config = open_config()

    async def carry(halt: SignalWatch) -> int:
        async with open_read_only(config, _QUESTIONS_LABEL) as looking:
            found = await _pending_questions(looking)
        if is_json:
            print_line(encode_json([_question_json(each) for each in found], is_pretty=True))
        elif not found:
            print_line("nothing waits for an answer")
        for each in () if is_json else found:
            print_line(f"{each.name}  session {each.session.name}")
            print_line(
                "".join(f"  {line}\n" for line in printable(each.asked.question).splitlines())
                + f"  {_answer_hint(each)}\n"
            )
        return DONE

    return run_async(carry)


def _answer_hint(waiting: PendingQuestion) -> str:
    return f"→ {answer_command(waiting)}"


def _question_json(waiting: PendingQuestion) -> Json:
    asked: Json = msgspec.to_builtins(waiting.asked)
    asked.pop("type")
    return {"id": waiting.name, "session": waiting.session.id, "name": waiting.session.name, **asked}


async def _pending_questions(looking: ReadOnlyApi) -> list[PendingQuestion]:
    found = [session for session in await looking.unfinished() if session.is_open]
    return [PendingQuestion(session, asked) for session in found for asked in await looking.questions(session)]


@command.command("answer")
@click.argument("ask")
@click.argument("answer", type=click.Choice(ANSWERS))
@click.option("--no-wait", "is_brief", is_flag=True, help="Only write the answer down; `outrider resume` goes on.")
@_JSON
def answer_question(ask: str, answer: str, is_brief: bool, is_json: bool) -> int:
    """Answer a question, carry its turn to the end and print the reply.

    ASK is an id as `outrider asks` shows it, or six characters or more of its beginning. The answer: allow it once, in
    this session or in this workspace from now on, or no.
    """
    check_text(ask, "the question's id")
    config = open_config()
    return run_async(partial(_record_answer if is_brief else _answer_and_run, config, ask, answer, is_json))


async def _record_answer(config: Config, ask: str, answer: str, is_json: bool, halt: SignalWatch) -> int:
    async with open_home(config, OpenMode(_QUESTIONS_LABEL, "none")) as agent:
        waiting = _find_question(await _pending_questions(agent), ask)
        await agent.answer(waiting.session, waiting.asked, answer)
        is_carried = agent.is_client
    goes_on = "the turn goes on" if is_carried else f"outrider resume {waiting.session.name} goes on"
    warn(f"answered {answer}: {goes_on}")
    return DONE


async def _answer_and_run(config: Config, ask: str, answer: str, is_json: bool, halt: SignalWatch) -> int:
    async with open_home(config, OpenMode(_QUESTIONS_LABEL, "own")) as agent:
        waiting = _find_question(await _pending_questions(agent), ask)
        await agent.answer(waiting.session, waiting.asked, answer)
        found = await wait_or_suspend(agent, waiting.session)
    return _print_result(found, waiting.session, is_json)


def _print_result(found: TurnResult | Sequence[Asked] | None, session: Session, is_json: bool) -> int:
    if found is None:
        return DONE
    if not isinstance(found, TurnResult):
        print_pending(session, found)
        return FAILED
    print_line(encode_json(render_turn_result(found, session)) if is_json else found.text)
    if found.error:
        warn(found.error)
    return {"done": DONE, "failed": FAILED, "interrupted": STOPPED}[found.outcome]


def _find_question(waiting: Sequence[PendingQuestion], name: str) -> PendingQuestion:
    matching = [each for each in waiting if name in (each.name, each.asked.ask)]
    matching = matching or [each for each in waiting if len(name) >= _MIN_ID_PREFIX and each.name.startswith(name)]
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise Refused(f"{len(matching)} questions begin with {name!r}; `outrider asks list` shows them")
    raise Refused(f"no question {name!r} waits; `outrider asks list` shows those that do")
