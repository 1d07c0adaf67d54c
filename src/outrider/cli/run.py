"""`outrider run`: one turn.

Stdout holds the reply and nothing else; progress, notices and errors go to stderr.
"""

import shlex
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from pathlib import Path

import anyio
import click
from msgspec import Struct
from msgspec.structs import replace

from outrider.app.addresses import PIPE, PROMPT
from outrider.app.api import AgentApi, OpenMode
from outrider.app.runtimes import apply_settings, settings_of
from outrider.app.workspaces import require_folder
from outrider.cli.commands import FAILED, TURN_EXIT_CODES
from outrider.cli.options import check_not_blank, read_images, read_message, session_settings
from outrider.cli.output import print_json, print_line, printable, render_turn_result, warn
from outrider.cli.questions import (
    QuestionPrompter,
    can_answer,
    is_interactive,
    print_pending,
    wait_until_suspended,
)
from outrider.cli.render import ProgressLine, answer_line
from outrider.cli.setup import (
    SignalWatch,
    continue_in_folder,
    open_config,
    open_home,
    resolve_workspace,
    run_async,
)
from outrider.config.schema import Config
from outrider.core.errors import NeedsAnotherProcess, Refused, Unavailable
from outrider.core.events import Answered, Asked, Entry, Event, render_event
from outrider.core.plan import fold
from outrider.core.store_port import Session
from outrider.core.tasks import Task
from outrider.core.text import plural
from outrider.core.turn_result import TurnResult, last_turn, turn_result
from outrider.ipc.client import HomeClient
from outrider.system.task_groups import background_group, first_of

_MAX_KEY_LENGTH = 90


class RunOptions(Struct, frozen=True):
    """The command line. The fields are the names of click's parameters."""

    words: tuple[str, ...]
    session: str | None = None
    model: str = ""
    runtime: str | None = None
    workspace: str = ""
    images: tuple[str, ...] = ()
    key: str | None = None
    timeout: int | None = None
    is_json: bool = False
    is_quiet: bool = False


class RunRequest(Struct, frozen=True):
    """The command line, checked, with stdin and the images read."""

    text: str
    session: str
    settings: Mapping[str, str]
    """Settings that this session keeps."""
    workspace: Path | None
    has_explicit_workspace: bool
    images: tuple[bytes, ...]
    key: str | None
    address: str
    """Where the reply goes: to a person who can answer questions, or to a pipe. Empty: where the open turn replies."""


@click.command("run")
@click.argument("words", nargs=-1, metavar="[WORDS]... [-]")
@click.option("--session", "-s", metavar="NAME", help="Continue the session NAME, or create it.")
@click.option("--model", "-m", default="", metavar="NAME", help="Use this model in the session from now on.")
@click.option("--runtime", "-r", metavar="NAME", help="Use this runtime in the session from now on, e.g. codex.")
@click.option("--workspace", "-w", default="", metavar="PATH", help="Work in this folder (new sessions only).")
@click.option("--image", "-i", "images", multiple=True, metavar="FILE", help="Attach an image; may be repeated.")
@click.option(
    "--key", metavar="KEY", help="Idempotency key: repeating it returns the same reply and runs nothing twice."
)
@click.option("--timeout", type=click.IntRange(1, 604_800), metavar="SECONDS", help="Stop the turn after this time.")
@click.option("--json", "is_json", is_flag=True, help="Print every event as a line of JSON.")
@click.option("--quiet", "-q", "is_quiet", is_flag=True, help="Print only errors on stderr.")
def command(**parameters: object) -> int:
    """Run one turn and print the reply.

    WORDS are the message and need no quotes. With `-` among them, stdin is appended. Without WORDS, the message is read
    from stdin.
    """
    options = RunOptions(**parameters)  # pyright: ignore[reportArgumentType]
    config = open_config()
    request = _parse_request(options, config)
    signals = SignalWatch()
    return run_async(partial(_run, config, request, options, signals), signals)


def _parse_request(options: RunOptions, config: Config) -> RunRequest:
    """Refuse here whatever can be refused without opening the home."""
    session, key = check_not_blank(options.session, "--session"), check_not_blank(options.key, "--key")
    if len(key) > _MAX_KEY_LENGTH or not key.isprintable():
        raise Refused(f"--key takes at most {_MAX_KEY_LENGTH} printable characters")
    text = read_message(options.words, config.limits.input)
    return RunRequest(
        text=text,
        # A key belongs to a session. Without one it names its own, so that it is found again.
        session=session or (f"key {key}" if key else ""),
        settings=session_settings(config, options.model, options.runtime, is_new=not session),
        workspace=resolve_workspace(config, options.workspace),
        has_explicit_workspace=bool(options.workspace),
        images=tuple(read_images(options.images)),
        key=key or None,
        address=f"{PROMPT if is_interactive() and not options.is_quiet else PIPE}:run",
    )


async def _run(config: Config, request: RunRequest, options: RunOptions, signals: SignalWatch) -> int:
    mode = OpenMode("outrider run", "own")
    async with open_home(config, mode, workspace=request.workspace, is_quiet=options.is_quiet) as agent:
        session = await agent.session(request.session)
        session = await _check_workspace(agent, request, session, options.is_quiet)
        has_questions = False
        if session.is_open and not can_answer(request.address):
            state = fold(await agent.journal(session))
            if can_answer(state.address) and (state.has_person or state.questions):
                # The open turn keeps its address: its questions stay pending for the person who can answer them.
                request, has_questions = replace(request, address=""), bool(state.questions)
        if not options.is_quiet:
            await _warn_unfinished(agent, session, has_questions=has_questions)
        await apply_settings(agent, session, request.settings)
        if not options.is_quiet and agent.owner_mismatch({}):
            mismatch = agent.owner_mismatch(settings_of(await agent.journal(session)))
            if mismatch:
                warn(mismatch)
        turn = _TurnRun(agent, session, request, options)
        resume_hint = f"Your message is saved. To continue: outrider resume {shlex.quote(session.name)}"
        try:
            result = await turn.run()
        except anyio.get_cancelled_exc_class():
            if not signals.is_interrupt:
                turn.warn_unfinished()
                raise
            with anyio.CancelScope(shield=True):
                await turn.stop()
            raise
        except NeedsAnotherProcess as error:
            warn(f"{error}. {resume_hint}")
            return FAILED
        except Unavailable as error:
            if not turn.first_entry:
                raise
            raise Unavailable(f"{error}. {resume_hint}") from error
        if not isinstance(result, TurnResult):
            print_pending(session, result)
            warn("your message is saved; the model reads it after the answer")
            return FAILED
        tasks = await agent.tasks(session, open_only=True)
        code = _print_result(result, session, options, config, tasks)
        if not options.is_quiet:
            _warn_running_tasks(tasks)
        return code


class _TurnRun:
    """One turn, from the message that begins it to its end: shows its events, asks its questions, keeps its timeout."""

    def __init__(self, agent: HomeClient, session: Session, request: RunRequest, options: RunOptions) -> None:
        self._agent = agent
        self._session = session
        self._request = request
        self._options = options
        self.first_entry: Entry | None = None
        """The message, once it was recorded."""
        self._is_recorded = anyio.Event()
        self._is_late = False
        has_progress = sys.stderr.isatty() and not options.is_json and not options.is_quiet
        self._progress = ProgressLine() if has_progress else None
        self._prompter = None
        if request.address.startswith(f"{PROMPT}:"):
            self._prompter = QuestionPrompter(agent, session, self._progress.paused if self._progress else nullcontext)
        self._questions: dict[str, Asked] = {}

    async def run(self) -> TurnResult | Sequence[Asked]:
        """Run the turn to its end; or, where the message joins a turn of someone else, until a question suspends it.

        The timeout is kept here, not by the owner of the home: each client has its own.
        """
        async with background_group() as group, self._display():
            if self._options.timeout:
                group.start_soon(self._stop_after, self._options.timeout)
            if self._request.address:
                result = await self._say()
            else:
                result = await first_of(self._say, self._wait_until_suspended)
        if self._is_late and isinstance(result, TurnResult) and result.outcome == "interrupted":
            return replace(result, outcome="failed")
        return result

    async def _say(self) -> TurnResult | Sequence[Asked]:
        return await self._agent.say(
            self._request.text,
            session=self._session.id,
            images=self._request.images,
            key=self._request.key,
            address=self._request.address,
            on_event=self._on_event,
        )

    async def _wait_until_suspended(self) -> Sequence[Asked]:
        await self._is_recorded.wait()
        assert self.first_entry
        return await wait_until_suspended(self._agent, self._session, self.first_entry.seq - 1)

    async def _stop_after(self, seconds: int) -> None:
        await anyio.sleep(seconds)
        self._is_late = True
        await self._agent.stop(self._session, f"stopped after {seconds} s (--timeout)")

    @asynccontextmanager
    async def _display(self) -> AsyncGenerator[None]:
        async with (
            self._progress.animated() if self._progress else nullcontext(),
            self._prompter.prompting() if self._prompter else nullcontext(),
        ):
            yield

    def _on_event(self, event: Event) -> None:
        if isinstance(event, Entry):
            self.first_entry = self.first_entry or event
            self._is_recorded.set()
        if self._options.is_json:
            print_json(render_event(event))
        elif self._progress:
            self._progress.show(event)
        if self._prompter:
            self._prompter.on_event(event)
        if not self._progress and not self._options.is_quiet:
            self._warn_denied(event)

    def _warn_denied(self, event: Event) -> None:
        """Without a person at the terminal, stderr still says what was not done, and why."""
        match event:
            case Entry(body=Asked() as asked):
                self._questions[asked.ask] = asked
            case Entry(body=Answered() as answered) if not answered.person:
                warn(answer_line(self._questions.get(answered.ask), answered))
            case _:
                pass

    def warn_unfinished(self) -> None:
        """Say where the turn continues when this process ends first."""
        name = shlex.quote(self._session.name)
        if self._agent.continues_elsewhere:
            warn(f"the turn continues in another process: outrider sessions show {name}")
        else:
            warn(f"the turn is not finished; to finish it: outrider resume {name}")

    async def stop(self) -> None:
        """Stop the turn and print what it said so far."""
        await self._agent.stop(self._session, "stopped by Ctrl-C")
        if not self.first_entry:
            return
        entries = await self._agent.journal(self._session, self.first_entry.seq - 1)
        result = turn_result(self._session.id, last_turn(entries))
        if self._options.is_json:
            print_json(render_turn_result(result, self._session))
        elif result.text:
            print_line(result.text)
        warn("stopped")
        _warn_running_tasks(await self._agent.tasks(self._session, open_only=True))


def _print_result(
    result: TurnResult, session: Session, options: RunOptions, config: Config, tasks: Sequence[Task]
) -> int:
    if options.is_json:
        print_json(render_turn_result(result, session, [task.id for task in tasks]))
    elif result.text and config.chat.markdown and sys.stdout.isatty():
        _print_markdown(result.text)
    elif result.text:
        print_line(result.text)
    if result.cut and not options.is_quiet:
        warn(f"the provider ended this reply early: {result.cut}")
    # The error of another agent is also the reply, and one line is enough.
    if result.outcome != "done" and (options.is_json or result.error != result.text):
        warn(result.error or "stopped")
    return TURN_EXIT_CODES[result.outcome]


def _print_markdown(text: str) -> None:
    from rich.console import Console
    from rich.markdown import Markdown

    Console().print(Markdown(printable(text)))


async def _check_workspace(agent: AgentApi, request: RunRequest, session: Session, is_quiet: bool) -> Session:
    session = await continue_in_folder(
        agent, session, request.workspace, is_explicit=request.has_explicit_workspace, is_quiet=is_quiet
    )
    require_folder(session)
    if session.workspace == str(request.workspace):
        return session
    if request.has_explicit_workspace:
        raise Refused(
            f"the workspace of session {session.name!r} is {session.workspace} and cannot be changed; "
            "start a new session"
        )
    if not is_quiet:
        warn(f"session {session.name!r} works in {session.workspace}, not in the current folder")
    return session


async def _warn_unfinished(agent: AgentApi, session: Session, *, has_questions: bool) -> None:
    """Another owner of the home runs its unfinished turns itself, so only this process's own are mentioned."""
    others = 0 if agent.is_client else sum(other.id != session.id for other in await agent.unfinished())
    if others:
        warn(f"other sessions have {plural(others, 'unfinished turn')}; to finish: outrider resume")
    if session.has_work and not has_questions:  # Those are printed, with the commands that answer them.
        warn(f"session {session.name!r} has an unfinished turn; this message becomes part of it")


def _warn_running_tasks(tasks: Sequence[Task]) -> None:
    if len(tasks) == 1:
        warn(f"task {tasks[0].id} is still running; to wait for it: outrider tasks wait {tasks[0].id}")
    elif tasks:
        warn(f"{len(tasks)} tasks are still running; to list them: outrider tasks list")
