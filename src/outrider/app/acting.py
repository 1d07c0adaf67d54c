"""What commands do with a home, whoever owns it: the calls that an open agent answers, here or in another process."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from math import inf
from typing import Protocol

from msgspec.structs import replace

from outrider.config.choose import choose_models
from outrider.config.load import Config
from outrider.core.approve import Permission
from outrider.core.errors import Refused
from outrider.core.events import Asked, Ended, Entry, Event, Input, Reply
from outrider.core.key_ports import Key, KeySpec
from outrider.core.outcome import TurnResult, turn_result
from outrider.core.ports import Commands, SearchHit, Session
from outrider.core.tasks import Task

DEFAULT_PERSON = "owner"
"""The person whose home this is."""


class ReadOnlyApi(Protocol):
    """What can be looked up, and the ends of commands, which are on the disk."""

    async def sessions(self, limit: int = 100) -> Sequence[Session]: ...
    async def find(self, name: str) -> Session: ...
    async def find_by_prefix(self, name: str) -> Session: ...
    async def journal(self, session: Session, after: int = 0, limit: int = 0) -> Sequence[Entry]: ...
    async def unfinished(self) -> Sequence[Session]: ...
    async def questions(self, session: Session) -> Sequence[Asked]: ...
    async def permissions(self) -> Sequence[Permission]: ...
    async def tasks(
        self, session: Session | None = None, *, open_only: bool = False, limit: int = 1_000
    ) -> Sequence[Task]: ...
    async def find_task(self, name: str) -> Task: ...
    async def kill_task(self, task: Task) -> Task: ...
    async def wait_task(self, task: Task, seconds: float = inf) -> Task: ...
    async def find_key(self, id: str) -> Key | None: ...
    async def list_keys(self) -> Sequence[Key]: ...
    async def spent(self, id: str, since: int = 0) -> float: ...

    @property
    def commands(self) -> Commands:
        """The commands of tasks, as they are on disk."""
        ...


class AgentApi(ReadOnlyApi, Protocol):
    """A home that can be acted in. What each call promises stands at `Agent`."""

    @property
    def config(self) -> Config: ...
    @property
    def notices(self) -> Sequence[str]:
        """What the person should know about this home."""
        ...

    def owner_mismatch(self, settings: Mapping[str, str]) -> str:
        """Who answers otherwise than this process would, in a session with these settings; empty when nobody does."""
        ...

    @property
    def is_client(self) -> bool:
        """Whether another process owns the home now, and carries its turns."""
        ...

    @property
    def default_model(self) -> str:
        """What is asked when a session names no model; empty when nothing can be."""
        ...

    @property
    def default_runtime(self) -> str:
        """What carries the turns of sessions that ask for nothing else."""
        ...

    async def wait_owner_changed(self) -> None:
        """Wait until another process owns the home than now."""
        ...

    async def say(
        self,
        text: str,
        *,
        session: str = "",
        images: Sequence[bytes] = (),
        key: str | None = None,
        address: str = "",
        on_event: Callable[[Event], None] | None = None,
    ) -> TurnResult: ...
    async def post(
        self,
        text: str,
        *,
        session: Session,
        images: Sequence[bytes] = (),
        key: str | None = None,
        address: str = "",
    ) -> Entry: ...
    def follow(self, session: Session, after: int = 0) -> AsyncGenerator[Event, None]: ...
    async def resume(self, session: Session) -> None: ...
    async def resume_all(self) -> Sequence[Session]: ...
    async def wait(self, session: Session) -> TurnResult | None: ...
    async def stop(self, session: Session, reason: str = "stopped by the person", *, tasks: bool = False) -> bool: ...
    async def answer(self, session: Session, asked: Asked, answer: str) -> bool: ...
    async def revoke_permission(self, grant: str) -> bool: ...
    async def session(self, name: str = "") -> Session: ...
    async def search(self, words: str, limit: int = 20) -> Sequence[SearchHit]: ...
    async def rename(self, session: Session, name: str) -> Session: ...
    async def delete(self, session: Session) -> bool: ...
    async def change(self, session: Session, settings: Mapping[str, str]) -> None: ...
    async def create_key(self, id: str, wish: KeySpec, digest: bytes) -> Key: ...
    async def revoke_key(self, id: str) -> bool: ...


async def collect_result(
    session: str, events: AsyncGenerator[Event, None], on_event: Callable[[Event], None] | None
) -> TurnResult:
    """What came of the input that these events, each passed on, begin with."""
    turn: list[Entry] = []
    async with aclosing(events) as stream:
        async for event in stream:
            if on_event:
                on_event(event)
            if isinstance(event, Entry):
                turn.append(event)
    outcome, reply = turn_result(session, last_turn(turn)), _final_reply(turn)
    return replace(outcome, text=reply.text, cut=reply.cut, outcome="done", error="") if reply else outcome


def is_final_reply(reply: Reply, seq: int, newest: int) -> bool:
    """Whether this reply is the last about the input at `seq`: the next is about the newest one, which it missed."""
    return seq <= reply.saw < newest and not reply.calls


def _final_reply(entries: Sequence[Entry]) -> Reply | None:
    """What was said last of the first of these, an input; None when that is what the turn ended with."""
    newest = 0
    for entry in entries:
        if isinstance(entry.body, Input) and entry.body.source == "person":
            newest = entry.seq
        elif isinstance(entry.body, Reply) and is_final_reply(entry.body, entries[0].seq, newest):
            return entry.body
    return None


async def until_turn_ended(entry: Entry, events: AsyncGenerator[Event, None]) -> AsyncGenerator[Event, None]:
    """These events, to the `Ended` that deals with this input."""
    async with aclosing(events) as stream:
        async for event in stream:
            yield event
            if isinstance(event, Entry) and isinstance(event.body, Ended) and event.body.saw >= entry.seq:
                return


def default_model_name(config: Config) -> str:
    """The name of the model that these settings choose; empty when they choose none that can be asked."""
    try:
        return choose_models(config)[0].name
    except Refused:
        return ""


def last_turn(entries: Sequence[Entry]) -> Sequence[Entry]:
    """Without what belongs to an earlier turn, such as one that ended just before it could see a new input."""
    ends = [index for index, entry in enumerate(entries) if isinstance(entry.body, Ended)]
    return entries[ends[-2] + 1 :] if len(ends) > 1 else entries


def require_session(found: Session | None, name: str) -> Session:
    """The session that was looked for by this name. Raises Refused when there is none."""
    if found is None:
        raise Refused(f"no session is called {name!r}; `outrider sessions list` shows them")
    return found


_SIGNATURES = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
}


def media_type(content: bytes) -> str:
    """The media type of a picture, by its first bytes. Raises Refused for anything else."""
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "image/webp"
    for magic, media in _SIGNATURES.items():
        if content.startswith(magic):
            return media
    raise Refused("not a picture that models can read: PNG, JPEG, GIF and WebP are taken")
