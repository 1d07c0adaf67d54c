"""Questions to the person outside the chat: shown, put at a terminal, or left for later where a turn waits for one.

`outrider questions`: the questions that wait for a person, and the answers to them.

`outrider permissions`: what was allowed for a whole session or workspace, and taking it back.
"""

import os
import sys
import termios
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractContextManager, aclosing, asynccontextmanager, nullcontext, suppress
from functools import partial

import anyio
import click
import msgspec
from msgspec import Struct

from outrider.app.addresses import CHANNELS
from outrider.app.api import AgentApi, OpenMode, ReadOnlyApi
from outrider.cli.chat.display import answer_hint, parse_answer
from outrider.cli.commands import DONE, FAILED, STOPPED
from outrider.cli.output import (
    check_text,
    encode_json,
    format_table,
    format_time,
    one_line,
    print_line,
    printable,
    render_turn_result,
    warn,
)
from outrider.cli.setup import SignalWatch, open_config, open_home, open_read_only, run_async
from outrider.config.schema import Config
from outrider.core.approvals import ANSWERS, NO, Permission
from outrider.core.delivery import channel_of
from outrider.core.errors import Refused
from outrider.core.events import Asked, Entry, Event, Json
from outrider.core.plan import AwaitAnswer, State, decide, fold
from outrider.core.store_port import Session
from outrider.core.turn_result import TurnResult
from outrider.system.tasks import unwrap_single

_MAX_QUEUED = 1_000


class PendingQuestion(Struct, frozen=True):
    """A question that a session waits to have answered."""

    session: Session
    asked: Asked

    @property
    def name(self) -> str:
        """What people call it: the beginning of its session's id, and of which call it is."""
        call = self.asked.call.removeprefix("c").lstrip("0")
        return f"{self.session.id[:8]}.{call or self.asked.ask}"


def answer_command(waiting: PendingQuestion) -> str:
    """In one line."""
    return f"outrider questions answer {waiting.name} {'|'.join(waiting.asked.choices)}"


def print_pending(session: Session, questions: Sequence[Asked]) -> None:
    """Say on stderr what a turn waits for, and how to go on."""
    for asked in questions:
        sys.stderr.write(f"{printable(asked.question)}\n")
        warn(f"session {session.name} waits for an answer: {answer_command(PendingQuestion(session, asked))}")


def is_interactive() -> bool:
    """Whether someone sits here who can be shown a question and answer it."""
    return sys.stdin.isatty() and sys.stderr.isatty()


class QuestionPrompter:
    """Puts the questions of a turn to whoever sits at this terminal, one after the other."""

    def __init__(
        self, agent: AgentApi, session: Session, hold: Callable[[], AbstractContextManager[None]] | None
    ) -> None:
        self._agent = agent
        self._session = session
        self._pause_progress = hold or nullcontext
        """Keeps everything else off the terminal's last line."""
        self._send, self._questions = anyio.create_memory_object_stream[Asked](_MAX_QUEUED)

    def on_event(self, event: Event) -> None:
        if isinstance(event, Entry) and isinstance(event.body, Asked):
            self._send.send_nowait(event.body)

    @asynccontextmanager
    async def prompting(self) -> AsyncGenerator[None]:
        """While the block runs, questions are put: those that wait already, and those that are heard."""
        with self._send, self._questions:
            for asked in await self._agent.questions(self._session):
                self._send.send_nowait(asked)
            try:
                async with anyio.create_task_group() as group:
                    group.start_soon(self._run)
                    yield
                    group.cancel_scope.cancel()
            except BaseExceptionGroup as several:
                raise unwrap_single(several) from several

    async def _run(self) -> None:
        async for asked in self._questions:
            with self._pause_progress():
                answer = await _prompt_for_answer(asked)
            await self._agent.answer(self._session, asked, answer)


async def _prompt_for_answer(asked: Asked) -> str:
    sys.stderr.write(f"\n{printable(asked.question)}\n")
    with suppress(termios.error):
        # What was typed before the question was seen is no answer to it.
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
    while True:
        sys.stderr.write(f"{answer_hint(asked.choices)}? ")
        sys.stderr.flush()
        typed = await _read_line()
        if not typed:  # Ctrl-D: whoever goes away has not agreed
            sys.stderr.write("\n")
            return NO
        if answer := parse_answer(typed, asked.choices):
            return answer


async def _read_line() -> str:
    """A line typed at the terminal; empty at its end. May be cancelled while nobody types."""
    heard = b""
    while not heard.endswith(b"\n"):
        await anyio.wait_readable(sys.stdin.fileno())
        piece = os.read(sys.stdin.fileno(), 4096)
        if not piece:
            break
        heard += piece
    return heard.decode("utf-8", "replace")


async def wait_or_suspend(agent: AgentApi, session: Session) -> TurnResult | Sequence[Asked] | None:
    """Wait until nothing is left to do in this session, or until it waits for a person.

    `session` as it was before it was taken up. None when there was nothing to do.
    """
    found: list[TurnResult | Sequence[Asked] | None] = []

    async def wait() -> None:
        found.append(await agent.wait(session))
        group.cancel_scope.cancel()

    async def watch() -> None:
        found.append(await _wait_until_suspended(agent, session))
        group.cancel_scope.cancel()

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            group.start_soon(watch)
    except BaseExceptionGroup as several:
        raise unwrap_single(several) from several
    return found[0]


async def _wait_until_suspended(agent: AgentApi, session: Session) -> Sequence[Asked]:
    """The questions that have brought the session to rest, once some have."""
    state = State()
    async with aclosing(agent.follow(session)) as stream:
        async for event in stream:
            if isinstance(event, Entry):
                state = fold([event], state)
                if event.seq > session.head and is_suspended(state):
                    return tuple(state.questions.values())
    raise AssertionError("a follower never ends by itself")


def is_suspended(state: State) -> bool:
    """Whether nothing happens until a person answers. Where nobody can, the answer is no and the turn goes on."""
    return isinstance(decide(state, {}), AwaitAnswer) and _can_answer(state.address)


async def deny_unanswerable(agent: AgentApi, session: Session, address: str = "") -> int:
    """Say no to what a session still asks when its turn goes on where nobody can answer; how many those were."""
    state = fold(await agent.journal(session))
    if _can_answer(address or state.address):
        return 0
    for asked in state.questions.values():
        await agent.answer(session, asked, NO)
    return len(state.questions)


def _can_answer(address: str) -> bool:
    traits = CHANNELS.get(channel_of(address))
    return bool(traits and traits.can_answer)


_QUESTIONS_LABEL = "outrider questions"
_MIN_ID_PREFIX = 6
"""Characters of a question's id that stand for all of it."""
_JSON = click.option("--json", "is_json", is_flag=True, help="Print JSON.")


@click.group("questions", invoke_without_command=True)
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
@click.argument("question")
@click.argument("answer", type=click.Choice(ANSWERS))
@click.option("--no-wait", "is_brief", is_flag=True, help="Only write the answer down; `outrider resume` goes on.")
@_JSON
def answer_question(question: str, answer: str, is_brief: bool, is_json: bool) -> int:
    """Answer a question, carry its turn to the end and print the reply.

    QUESTION is an id as `outrider questions` shows it, or six characters or more of its beginning. The answer: allow it once, in
    this session or in this workspace from now on, or no.
    """
    check_text(question, "the question's id")
    config = open_config()
    return run_async(partial(_record_answer if is_brief else _answer_and_run, config, question, answer, is_json))


async def _record_answer(config: Config, question_id: str, answer: str, is_json: bool, halt: SignalWatch) -> int:
    async with open_home(config, OpenMode(_QUESTIONS_LABEL, "none")) as agent:
        waiting = _find_question(await _pending_questions(agent), question_id)
        await agent.answer(waiting.session, waiting.asked, answer)
        is_carried = agent.is_client
    goes_on = "the turn goes on" if is_carried else f"outrider resume {waiting.session.name} goes on"
    warn(f"answered {answer}: {goes_on}")
    return DONE


async def _answer_and_run(config: Config, question_id: str, answer: str, is_json: bool, halt: SignalWatch) -> int:
    async with open_home(config, OpenMode(_QUESTIONS_LABEL, "own")) as agent:
        waiting = _find_question(await _pending_questions(agent), question_id)
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
        raise Refused(f"{len(matching)} questions begin with {name!r}; `outrider questions list` shows them")
    raise Refused(f"no question {name!r} waits; `outrider questions list` shows those that do")


_PERMISSIONS_LABEL = "outrider permissions"


@click.group("permissions")
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
            rows = [("PERMISSION", "NEED", "IN", "SINCE")]
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


async def _scope_text(looking: ReadOnlyApi, permission: Permission) -> str:
    if permission.scope != "session":
        return one_line(permission.applies_to)
    try:
        return f"session {one_line((await looking.find(permission.applies_to)).name)}"
    except Refused:  # it was deleted meanwhile
        return f"session {one_line(permission.applies_to)}"


@permissions_command.command("forget")
@click.argument("permission")
def forget_permission(permission: str) -> int:
    """Revoke a permission, so that Outrider asks again. PERMISSION is an id, or the beginning of one."""
    check_text(permission, "the permission's id")
    return run_async(partial(_forget_permission, open_config(), permission))


async def _forget_permission(config: Config, name: str, halt: SignalWatch) -> int:
    async with open_home(config, OpenMode(_PERMISSIONS_LABEL, "none")) as agent:
        found = [grant for grant in await agent.permissions() if name and grant.id.startswith(name)]
        exact = [grant for grant in found if grant.id == name] or found
        if len(exact) != 1:
            what = f"{len(found)} permissions begin with {name!r}" if found else f"there is no permission {name!r}"
            raise Refused(f"{what}; `outrider permissions list` shows them")
        await agent.revoke_permission(exact[0].id)
        print_line(f"{exact[0].need} is asked for again in {exact[0].applies_to}")
    return DONE
