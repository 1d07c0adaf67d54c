"""`outrider questions` and `outrider permissions`, and questions at the terminal of a running turn.

A turn that waits for an answer is suspended: the commands here list such questions, answer them, and continue the turn.
Where nobody can answer, the answer is no.
"""

import os
import shutil
import sys
import termios
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractContextManager, aclosing, asynccontextmanager, suppress
from functools import partial

import anyio
import click

from outrider.app.addresses import CHANNELS
from outrider.app.api import DEFAULT_PERSON, AgentApi, OpenMode, PendingQuestion
from outrider.cli.chat.display import answer_hint, is_view_request, parse_answer
from outrider.cli.commands import DONE, FAILED, JSON_OPTION, TURN_EXIT_CODES
from outrider.cli.output import (
    check_text,
    format_table,
    format_time,
    one_line,
    print_json,
    print_line,
    render_turn_result,
    warn,
)
from outrider.cli.setup import open_config, open_home, open_read_only, run_async
from outrider.config.schema import Config
from outrider.core.approvals import ANSWERS, NO, Permission, render_need
from outrider.core.delivery import channel_of
from outrider.core.errors import Refused
from outrider.core.events import Asked, Entry, Event, Json
from outrider.core.plan import AwaitAnswer, State, decide, fold
from outrider.core.question_text import fitted_question, whole_question
from outrider.core.store_port import Session
from outrider.core.text import clip, escape_invisible, quote_unusual
from outrider.core.turn_result import TurnResult
from outrider.system.task_groups import background_group, first_of

_MAX_QUEUED = 1_000


def answer_command(question: PendingQuestion) -> str:
    return f"outrider questions answer {question.id} {'|'.join(question.asked.choices)}"


def print_pending(session: Session, questions: Sequence[Asked]) -> None:
    """Print on stderr the questions that suspend a turn, and the commands that answer them."""
    for asked in questions:
        question = PendingQuestion(session, asked)
        sys.stderr.write(_render_cut_question(question) + "\n")
        warn(f"session {session.name} is waiting for an answer: {answer_command(question)}")


def _render_cut_question(question: PendingQuestion) -> str:
    """The question; if a part of it is left out, with the command that shows all of it."""
    text = escape_invisible(question.asked.question)
    if text != whole_question(question.asked):
        text += f"\n→ outrider questions show {question.id} shows all of it"
    return text


def is_interactive() -> bool:
    """Whether a person at this terminal can read a question and answer it."""
    return sys.stdin.isatty() and sys.stderr.isatty()


class QuestionPrompter:
    """Asks the questions of a turn at this terminal, one after the other."""

    def __init__(
        self, agent: AgentApi, session: Session, pause_output: Callable[[], AbstractContextManager[None]]
    ) -> None:
        """`pause_output` keeps other output off the terminal's last line."""
        self._agent = agent
        self._session = session
        self._pause_output = pause_output
        self._send, self._questions = anyio.create_memory_object_stream[Asked](_MAX_QUEUED)

    def on_event(self, event: Event) -> None:
        if isinstance(event, Entry) and isinstance(event.body, Asked):
            self._send.send_nowait(event.body)

    @asynccontextmanager
    async def prompting(self) -> AsyncGenerator[None]:
        """Ask questions while the block runs: those already pending, and those that `on_event` receives."""
        with self._send, self._questions:
            for asked in await self._agent.questions(self._session):
                self._send.send_nowait(asked)
            async with background_group() as group:
                group.start_soon(self._run)
                yield

    async def _run(self) -> None:
        async for asked in self._questions:
            with self._pause_output():
                answer = await _prompt_for_answer(asked)
            await self._agent.answer(self._session, asked, answer)


_ROWS_BELOW = 4
_MIN_ROWS = 12


async def _prompt_for_answer(asked: Asked) -> str:
    columns, rows = shutil.get_terminal_size()
    sys.stderr.write(f"\n{fitted_question(asked, max(_MIN_ROWS, rows - _ROWS_BELOW), columns)}\n")
    with suppress(termios.error):
        # Text typed before the question was visible does not answer it.
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
    while True:
        sys.stderr.write(f"{answer_hint(asked.choices, can_view=asked.request is not None)}? ")
        sys.stderr.flush()
        line = await _read_line()
        if not line:  # Ctrl-D means no.
            sys.stderr.write("\n")
            return NO
        if answer := parse_answer(line, asked.choices):
            return answer
        if is_view_request(line, asked.choices):
            sys.stderr.write(f"{whole_question(asked)}\n")


async def _read_line() -> str:
    """Read a line from the terminal; empty at the end of input. Can be cancelled while it waits."""
    content = b""
    while not content.endswith(b"\n"):
        await anyio.wait_readable(sys.stdin.fileno())
        piece = os.read(sys.stdin.fileno(), 4096)
        if not piece:
            break
        content += piece
    return content.decode("utf-8", "replace")


async def wait_or_suspend(agent: AgentApi, session: Session, after: int) -> TurnResult | Sequence[Asked] | None:
    """Wait until the session has nothing left to do, or until questions suspend it in an entry after `after`.

    None when there was nothing to do.
    """
    return await first_of(partial(agent.wait, session), partial(wait_until_suspended, agent, session, after))


async def wait_until_suspended(agent: AgentApi, session: Session, after: int) -> Sequence[Asked]:
    """Wait for questions that suspend the session after this entry, and return them."""
    state = State()
    async with aclosing(agent.follow(session)) as stream:
        async for event in stream:
            if isinstance(event, Entry):
                state = fold([event], state)
                if event.seq > after and _is_suspended(state):
                    return tuple(state.questions.values())
    raise AssertionError("a stream of events never ends by itself")


def _is_suspended(state: State) -> bool:
    """Whether nothing happens until a person answers. Where nobody can, the answer is no and the turn continues."""
    return isinstance(decide(state, {}), AwaitAnswer) and can_answer(state.address)


def can_answer(address: str) -> bool:
    """Whether a person at this address can answer a question."""
    traits = CHANNELS.get(channel_of(address))
    return bool(traits and traits.can_answer)


_QUESTIONS_LABEL = "outrider questions"
_MIN_ID_PREFIX = 6


@click.group("questions", invoke_without_command=True)
@JSON_OPTION
@click.pass_context
def command(ctx: click.Context, is_json: bool) -> int:
    """List pending questions, show one in full, and answer them.

    The list includes those of other people who have a key to your Outrider: by default, only you can answer them.
    """
    return DONE if ctx.invoked_subcommand else _list_questions(is_json)


@command.command("list")
@JSON_OPTION
def list_questions(is_json: bool) -> int:
    """List pending questions, oldest first."""
    return _list_questions(is_json)


def _list_questions(is_json: bool) -> int:
    config = open_config()

    async def act() -> None:
        async with open_read_only(config, _QUESTIONS_LABEL) as agent:
            questions = await agent.pending_questions()
        if is_json:
            print_json([_question_json(question) for question in questions], is_pretty=True)
        elif not questions:
            print_line("no pending questions")
        for question in () if is_json else questions:
            lines = [*_render_cut_question(question).split("\n"), f"→ {answer_command(question)}"]
            print_line(f"{question.id}  {question_session(question)}")
            print_line("".join(f"  {line}\n" for line in lines))

    return run_async(act)


def question_session(question: PendingQuestion) -> str:
    """The session that asks, and whose it is if it is another person's."""
    session = question.session
    name = f"session {one_line(session.name)}"
    return name if session.person == DEFAULT_PERSON else f"{name} of {one_line(session.person)}"


@command.command("show")
@click.argument("question")
@JSON_OPTION
def show_question(question: str, is_json: bool) -> int:
    """Show a question in full: everything that would run.

    QUESTION is an id from `outrider questions`, or at least its first six characters.
    """
    check_text(question, "the question's id")
    config = open_config()

    async def act() -> None:
        async with open_read_only(config, _QUESTIONS_LABEL) as agent:
            match = find_question(await agent.pending_questions(), question)
        if is_json:
            print_json(_question_json(match), is_pretty=True)
            return
        print_line(f"{match.id}  {question_session(match)}")
        print_line(whole_question(match.asked))
        print_line(f"→ {answer_command(match)}")

    return run_async(act)


def _question_json(question: PendingQuestion) -> Json:
    asked = question.asked
    return {
        "id": question.id,
        "session": question.session.id,
        "name": question.session.name,
        "person": question.session.person,
        "ask": asked.ask,
        "question": escape_invisible(asked.question),
        "whole": whole_question(asked),
        "digest": asked.digest,
        "call": asked.call,
        "choices": asked.choices,
        "needs": asked.needs,
    }


@command.command("answer")
@click.argument("question")
@click.argument("answer", type=click.Choice(ANSWERS))
@click.option("--no-wait", "is_brief", is_flag=True, help="Only record the answer; `outrider resume` runs the turn.")
@JSON_OPTION
def answer_question(question: str, answer: str, is_brief: bool, is_json: bool) -> int:
    """Answer a question, run its turn to the end and print the reply.

    QUESTION is an id from `outrider questions`, or at least its first six characters. The answer allows the call once,
    for this session or for this workspace, or not at all. `outrider questions` shows which answers a question offers:
    if a rule asks about a call inside the sandbox, only once and no.
    """
    check_text(question, "the question's id")
    config = open_config()
    if is_brief:
        return run_async(partial(_record_answer, config, question, answer))
    return run_async(partial(_answer_and_run, config, question, answer, is_json))


async def _record_answer(config: Config, question_id: str, answer: str) -> None:
    async with open_home(config, OpenMode(_QUESTIONS_LABEL, "none")) as agent:
        question = find_question(await agent.pending_questions(), question_id)
        await agent.answer(question.session, question.asked, answer)
        is_running = agent.is_client
    session = question.session.name
    warn(f"answered {answer}; " + ("the turn continues" if is_running else f"to continue: outrider resume {session}"))


async def _answer_and_run(config: Config, question_id: str, answer: str, is_json: bool) -> int:
    async with open_home(config, OpenMode(_QUESTIONS_LABEL, "own")) as agent:
        question = find_question(await agent.pending_questions(), question_id)
        await agent.answer(question.session, question.asked, answer)
        if question.session.person != DEFAULT_PERSON:
            # What another person's agent says is not for us; `outrider up` continues the turn.
            warn(f"answered {answer} for {question.session.person}")
            return DONE
        result = await wait_or_suspend(agent, question.session, question.session.head)
    if result is None:
        return DONE
    if not isinstance(result, TurnResult):
        print_pending(question.session, result)
        return FAILED
    if is_json:
        print_json(render_turn_result(result, question.session))
    else:
        print_line(result.text)
    if result.error:
        warn(result.error)
    return TURN_EXIT_CODES[result.outcome]


def find_question(questions: Sequence[PendingQuestion], id: str) -> PendingQuestion:
    """The question of this id, or of the only id that begins like this. Raises Refused."""
    matches = [question for question in questions if id in (question.id, question.asked.ask)]
    if not matches and len(id) >= _MIN_ID_PREFIX:
        matches = [question for question in questions if question.id.startswith(id)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise Refused(f"{len(matches)} questions begin with {id!r}; `outrider questions list` shows them")
    raise Refused(f"there is no pending question {id!r}; `outrider questions list` shows all pending questions")


_PERMISSIONS_LABEL = "outrider permissions"


@click.group("permissions")
def permissions_command() -> None:
    """List and revoke the permissions you granted for a session or a workspace."""


@permissions_command.command("list")
@JSON_OPTION
def list_permissions(is_json: bool) -> int:
    """List the permissions you granted."""
    config = open_config()

    async def act() -> None:
        async with open_read_only(config, _PERMISSIONS_LABEL) as agent:
            permissions = await agent.permissions()
            rows = [("PERMISSION", "NEED", "IN", "SINCE")]
            rows += [
                (each.id, clip(render_need(each.need), 200), await _scope_text(agent, each), format_time(each.created))
                for each in permissions
            ]
        if is_json:
            print_json(permissions, is_pretty=True)
        else:
            print_line("\n".join(format_table(rows)) if permissions else "no permissions")

    return run_async(act)


async def _scope_text(agent: AgentApi, permission: Permission) -> str:
    if permission.scope != "session":
        return quote_unusual(permission.applies_to)
    try:
        return f"session {one_line((await agent.find(permission.applies_to)).name)}"
    except Refused:  # The session was deleted.
        return f"session {one_line(permission.applies_to)}"


@permissions_command.command("forget")
@click.argument("permission")
def forget_permission(permission: str) -> int:
    """Revoke a permission, so that Outrider asks again. PERMISSION is an id, or the beginning of one."""
    check_text(permission, "the permission's id")
    return run_async(partial(_forget_permission, open_config(), permission))


async def _forget_permission(config: Config, id: str) -> None:
    async with open_home(config, OpenMode(_PERMISSIONS_LABEL, "none")) as agent:
        matches = [permission for permission in await agent.permissions() if id and permission.id.startswith(id)]
        matches = [permission for permission in matches if permission.id == id] or matches
        if len(matches) != 1:
            problem = f"{len(matches)} permissions begin with {id!r}" if matches else f"there is no permission {id!r}"
            raise Refused(f"{problem}; `outrider permissions list` shows all permissions")
        await agent.revoke_permission(matches[0].id)
        need, where = render_need(matches[0].need), quote_unusual(matches[0].applies_to)
        print_line(f"revoked; Outrider will ask again for {need} in {where}")
