"""`outrider run`: one turn. The reply on stdout and nothing else there; all that is beside it on stderr."""

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import anyio
import click
from msgspec import Struct
from msgspec.structs import replace

from outrider.app.addresses import PIPE, PROMPT
from outrider.app.api import AgentApi, OpenMode
from outrider.app.runtimes import apply_settings, settings_of
from outrider.cli.commands import DONE, FAILED, STOPPED
from outrider.cli.options import read_images, read_message, session_settings
from outrider.cli.output import check_text, encode_json, print_line, printable, render_turn_result, warn
from outrider.cli.questions import QuestionPrompter, deny_unanswerable, is_interactive
from outrider.cli.render import ProgressLine, answer_line
from outrider.cli.setup import SignalWatch, open_config, open_home, resolve_workspace, run_async
from outrider.config.schema import Config
from outrider.core.errors import NeedsAnotherProcess, Refused, Unavailable
from outrider.core.events import Answered, Asked, Entry, Event, render_event
from outrider.core.store_port import Session
from outrider.core.tasks import Task
from outrider.core.turn_result import TurnResult, last_turn, turn_result
from outrider.ipc.client import HomeClient
from outrider.system.tasks import unwrap_single

_MAX_KEY_LENGTH = 90


class RunOptions(Struct, frozen=True):
    """What was typed."""

    words: tuple[str, ...]
    session: str = ""
    model: str = ""
    runtime: str | None = None
    workspace: str = ""
    images: tuple[str, ...] = ()
    key: str = ""
    timeout: int | None = None
    is_json: bool = False
    is_quiet: bool = False


class RunRequest(Struct, frozen=True):
    """What was typed, read and checked."""

    text: str
    session: str
    settings: Mapping[str, str]
    """What this session is to use from now on."""
    workspace: Path | None
    has_explicit_workspace: bool
    images: tuple[bytes, ...]
    key: str | None
    address: str
    """Where its answer goes: to someone who can be asked, or into a pipe."""


@click.command("run")
@click.argument("words", nargs=-1, metavar="[WORDS]... [-]")
@click.option("--session", "-s", default="", metavar="NAME", help="Continue the session of this name, or begin it.")
@click.option("--model", "-m", default="", metavar="NAME", help="The model this session is to use from now on.")
@click.option("--runtime", "-r", metavar="NAME", help="What carries its turns from now on, e.g. codex.")
@click.option("--workspace", "-w", default="", metavar="PATH", help="The folder a new session works in.")
@click.option("--image", "-i", "images", multiple=True, metavar="FILE", help="Show it a picture; may be repeated.")
@click.option("--key", default="", help="The same key again gives the same reply and runs nothing twice.")
@click.option("--timeout", type=click.IntRange(1, 604_800), metavar="SECONDS", help="Stop a turn that takes longer.")
@click.option("--json", "is_json", is_flag=True, help="Print what happens as JSON lines.")
@click.option("--quiet", "-q", "is_quiet", is_flag=True, help="Say nothing on stderr but errors.")
def command(**typed: object) -> int:
    """Do one thing and print the reply.

    WORDS need no quotes. `-` among them, or no words at all, reads stdin.
    """
    wish = RunOptions(**typed)  # pyright: ignore[reportArgumentType]
    config = open_config()
    order = _parse_request(wish, config)
    return run_async(partial(_run, config, order, wish))


def _parse_request(options: RunOptions, config: Config) -> RunRequest:
    """Everything that can be refused without opening the home is refused here."""
    for option, value in (("--session", options.session), ("--key", options.key)):
        check_text(value, option)
    if len(options.key) > _MAX_KEY_LENGTH or not options.key.isprintable():
        raise Refused(f"a key has at most {_MAX_KEY_LENGTH} printable characters")
    text = read_message(options.words, config.limits.input)
    return RunRequest(
        text=text,
        # Without a session the key names one: only there can it be found again.
        session=options.session or (f"key {options.key}" if options.key else ""),
        settings=session_settings(config, options.model, options.runtime, is_new=not options.session),
        workspace=resolve_workspace(config, options.workspace),
        has_explicit_workspace=bool(options.workspace),
        images=tuple(read_images(options.images)),
        key=options.key or None,
        address=f"{PROMPT if is_interactive() and not options.is_quiet else PIPE}:run",
    )


async def _run(config: Config, order: RunRequest, options: RunOptions, halt: SignalWatch) -> int:
    presence = OpenMode("outrider run", "own")
    async with open_home(config, presence, workspace=order.workspace, is_quiet=options.is_quiet) as agent:
        session = await agent.session(order.session)
        _check_workspace(order, session, options.is_quiet)
        if not options.is_quiet:
            await _warn_unfinished(agent, session, is_alone=not agent.is_client)
        await apply_settings(agent, session, order.settings)
        if not options.is_quiet and agent.owner_mismatch({}):
            told = agent.owner_mismatch(settings_of(await agent.journal(session)))
            if told:
                warn(told)
        if await deny_unanswerable(agent, session, order.address) and not options.is_quiet:
            warn("what this session was waiting to be allowed is now a no: nobody can be asked here")
        begun: list[Entry] = []
        try:
            outcome = await _run_turn_with_timeout(agent, session, order, options, begun)
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):
                await _on_interrupt(agent, session, begun, options, halt)
            raise
        except NeedsAnotherProcess as error:
            warn(f"{error}. Your message is kept: outrider resume {shlex.quote(session.name)}")
            return FAILED
        except Unavailable as error:
            if not begun:
                raise
            raise Unavailable(f"{error}. Your message is kept: outrider resume {shlex.quote(session.name)}") from error
        tasks = await agent.tasks(session, open_only=True)
        code = _print_result(outcome, session, options, config, tasks)
        if tasks and not options.is_quiet:
            _warn_running_tasks(tasks)
        return code


async def _run_turn_with_timeout(
    agent: AgentApi, session: Session, order: RunRequest, options: RunOptions, begun: list[Entry]
) -> TurnResult:
    """A turn that takes longer is stopped by whoever waits for it: others have other limits, and may own the home."""
    late: list[int] = []

    async def stop_when_late(seconds: int) -> None:
        await anyio.sleep(seconds)
        late.append(seconds)
        await agent.stop(session, f"stopped after {seconds} s (--timeout)")

    try:
        async with anyio.create_task_group() as group:
            if options.timeout:
                group.start_soon(stop_when_late, options.timeout)
            outcome = await _run_turn(agent, session, order, options, begun)
            group.cancel_scope.cancel()
            return replace(outcome, outcome="failed") if late and outcome.outcome == "interrupted" else outcome
    except BaseExceptionGroup as several:
        raise unwrap_single(several) from several
    raise AssertionError("the turn was waited for, or an error was raised")


async def _run_turn(
    agent: AgentApi, session: Session, order: RunRequest, options: RunOptions, begun: list[Entry]
) -> TurnResult:
    surface, progress = _event_sink(options), None
    if surface is None and sys.stderr.isatty():
        progress = ProgressLine()
    asker = None
    if order.address.startswith(f"{PROMPT}:"):
        asker = QuestionPrompter(agent, session, progress.paused if progress else None)
    asks: dict[str, Asked] = {}

    def show(event: Event) -> None:
        if not begun and isinstance(event, Entry):
            begun.append(event)
        if surface:
            surface(event)
        elif progress:
            progress.show(event)
        if asker:
            asker.on_event(event)
        if not progress and not options.is_quiet:
            _warn_denied(event, asks)

    async with progress.animated() if progress else nullcontext(), asker.prompting() if asker else nullcontext():
        return await agent.say(
            order.text, session=session.id, images=order.images, key=order.key, address=order.address, on_event=show
        )


def _warn_denied(event: Event, questions: dict[str, Asked]) -> None:
    """Where nobody watches, the log of whoever ran this still says what was not done, and why."""
    if isinstance(event, Entry) and isinstance(event.body, Asked):
        questions[event.body.ask] = event.body
    if isinstance(event, Entry) and isinstance(event.body, Answered) and not event.body.person:
        warn(answer_line(questions.get(event.body.ask), event.body))


def _warn_running_tasks(tasks: Sequence[Task]) -> None:
    if len(tasks) == 1:
        warn(f"task {tasks[0].id} goes on: outrider tasks wait {tasks[0].id}")
    else:
        warn(f"{len(tasks)} tasks go on: outrider tasks list")


def _event_sink(options: RunOptions) -> Callable[[Event], None] | None:
    """Where events go: to stdout as JSON, nowhere, or (None) to a person if one watches."""
    if options.is_json:
        return lambda event: print_line(encode_json(render_event(event)))
    return (lambda event: None) if options.is_quiet else None


async def _on_interrupt(
    agent: HomeClient, session: Session, begun: list[Entry], options: RunOptions, halt: SignalWatch
) -> None:
    """A person's Ctrl-C stops the turn for good; a shutdown only lets go of it."""
    if not halt.is_interrupt:
        name = shlex.quote(session.name)
        goes_on = f"the turn goes on without this: outrider sessions show {name}"
        warn(goes_on if agent.continues_elsewhere else f"the turn is left unfinished: outrider resume {name}")
        return
    await agent.stop(session, "stopped by Ctrl-C")
    if not begun:
        return
    outcome = turn_result(session.id, last_turn(await agent.journal(session, begun[0].seq - 1)))
    if options.is_json:
        print_line(encode_json(render_turn_result(outcome, session)))
    elif outcome.text:
        print_line(outcome.text)
    warn("stopped")
    if tasks := await agent.tasks(session, open_only=True):
        _warn_running_tasks(tasks)


def _print_result(
    outcome: TurnResult, session: Session, options: RunOptions, config: Config, tasks: Sequence[Task]
) -> int:
    if options.is_json:
        print_line(encode_json(render_turn_result(outcome, session, [task.id for task in tasks])))
    elif outcome.text and config.chat.markdown and sys.stdout.isatty():
        _print_markdown(outcome.text)
    elif outcome.text:
        print_line(outcome.text)
    if outcome.cut and not options.is_quiet:
        warn(f"the provider ended this reply early: {outcome.cut}")
    match outcome.outcome:
        case "done":
            return DONE
        case "failed":
            warn(outcome.error)
            return FAILED
        case "interrupted":
            warn(outcome.error or "stopped")
            return STOPPED


def _print_markdown(text: str) -> None:
    from rich.console import Console
    from rich.markdown import Markdown

    Console().print(Markdown(printable(text)))


def _check_workspace(order: RunRequest, session: Session, is_quiet: bool) -> None:
    if not Path(session.workspace).is_dir():
        raise Refused(
            f"the workspace of session {session.name!r} is gone: make {session.workspace} again, or begin a new session"
        )
    if session.workspace == str(order.workspace):
        return
    if order.has_explicit_workspace:
        raise Refused(f"session {session.name!r} works in {session.workspace} and keeps it; begin another session")
    if not is_quiet:
        warn(f"session {session.name!r} works in {session.workspace}, not in the current folder")


async def _warn_unfinished(agent: AgentApi, session: Session, *, is_alone: bool) -> None:
    """What is unfinished while another process owns the home is being worked at there, or was told there."""
    others = sum(other.id != session.id for other in await agent.unfinished()) if is_alone else 0
    if others:
        warn(f"{others} unfinished {'turn waits' if others == 1 else 'turns wait'}: outrider resume")
    if session.has_work:
        warn(f"session {session.name!r} has an unfinished turn, which goes on with this message")
