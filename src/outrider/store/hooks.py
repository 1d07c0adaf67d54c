"""Webhooks that are owed: what is kept of one, and all that reads, changes or rescues those rows."""

import secrets
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import astuple, replace

from outrider.core.errors import StoreDamaged
from outrider.store import sql_hooks
from outrider.store.faults import is_outside
from outrider.store.journal import Clock, unknown

HookState = Literal["pending", "sent", "failed"]
LOST_HOOKS = "Some webhooks may have been lost with it; what they would have told of is in the sessions."


class Hook(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A webhook that is owed for an input, or was. In the order of the table."""

    id: str
    """What the receiver knows it by. Random, and the same in every attempt."""
    session: str
    person: str
    seq: int
    """The entry that asked for what the webhook tells the end of."""
    created: int
    state: HookState = "pending"
    tries: int = 0
    """Attempts that failed."""
    due: int = 0
    """When to try next, in milliseconds since 1970."""
    why: str = ""
    """What the last attempt came to, in one line."""


class HookCount(Struct, frozen=True):
    """How many are not sent."""

    pending: int = 0
    failed: int = 0


class HookStore(Protocol):
    """Webhooks of every person. A write is durable when its call returns."""

    async def owe_hook(self, session: str, seq: int) -> Hook:
        """The one for this entry, made now if there is none. Raises Refused when there is no such session."""
        ...

    async def pending_hooks(self) -> Sequence[Hook]:
        """Those still to be sent, the oldest first."""
        ...

    async def note_hook(self, hook: Hook) -> None:
        """Keep its state, tries, due and why; one that is settled, or was deleted with its session, stays as it is."""
        ...

    async def count_hooks(self) -> HookCount: ...


class HookWrites:
    """All that may change webhooks, on the writer's connection."""

    def __init__(self, db: sqlite3.Connection, clock: Clock) -> None:
        self._db, self._clock = db, clock

    def owe_once(self, session: str, seq: int) -> Hook:
        if found := self._db.execute(sql_hooks.HOOK_BY_INPUT, (session, seq)).fetchone():
            return _hook_of(found)
        owner = self._db.execute(sql_hooks.PERSON_OF_SESSION, (session,)).fetchone()
        if owner is None:
            raise unknown(session)
        made = Hook(f"wh_{secrets.token_hex(16)}", session, owner[0], seq, self._clock() // 1000)
        self._db.execute(sql_hooks.INSERT_HOOK, astuple(made))
        return made

    def note(self, hook: Hook) -> None:
        self._db.execute(sql_hooks.UPDATE_HOOK, (hook.id, hook.state, hook.tries, hook.due, hook.why))

    def delete_with_session(self, session: str) -> None:
        self._db.execute(sql_hooks.DELETE_HOOKS, (session,))


def pending(db: sqlite3.Connection) -> Sequence[Hook]:
    return [_hook_of(row) for row in db.execute(sql_hooks.PENDING_HOOKS)]


def count(db: sqlite3.Connection) -> HookCount:
    found: dict[str, int] = dict(db.execute(sql_hooks.COUNT_HOOKS).fetchall())
    return HookCount(found.get("pending", 0), found.get("failed", 0))


def parse_hook(row: Sequence[Any]) -> Hook:
    """Raises ValueError when this is no webhook."""
    return msgspec.convert(row, Hook)


def _hook_of(row: Sequence[Any]) -> Hook:
    """Raises Damaged when it cannot be read."""
    try:
        return parse_hook(row)
    except ValueError as error:
        raise StoreDamaged(
            f"webhook {row[0]} is damaged ({error}); start Outrider again: it sets the damaged store aside"
        ) from error


def salvage_hooks(damaged: sqlite3.Connection, fresh: sqlite3.Connection, owners: Mapping[str, str]) -> list[str]:
    """Carry over what can be read of the sessions that were recovered, which have these owners. What was lost, if any.

    A row may be older than its last change: then it is sent again, under the id its receiver knows.
    """
    is_whole = True
    try:
        if not damaged.execute(sql_hooks.HAS_HOOKS).fetchone()[0]:
            return []
        for row in damaged.execute(sql_hooks.ALL_HOOKS):
            try:
                hook = parse_hook(row)
            except ValueError:
                is_whole = False
                continue
            if hook.session in owners:
                fresh.execute(sql_hooks.INSERT_HOOK, astuple(replace(hook, person=owners[hook.session])))
    except UnicodeDecodeError:
        is_whole = False
    except sqlite3.Error as error:
        if is_outside(error):
            raise
        is_whole = False
    return [] if is_whole else [LOST_HOOKS]
