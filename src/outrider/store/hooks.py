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
from outrider.store.faults import is_environmental
from outrider.store.journal import Clock, no_such_session

WebhookState = Literal["pending", "sent", "failed"]
LOST_WEBHOOKS = "Some webhooks may have been lost with it; what they would have told of is in the sessions."


class WebhookDelivery(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A webhook that is owed for an input, or was. In the order of the table."""

    id: str
    """What the receiver knows it by. Random, and the same in every attempt."""
    session: str
    person: str
    seq: int
    """The entry that asked for what the webhook tells the end of."""
    created: int
    state: WebhookState = "pending"
    tries: int = 0
    """Attempts that failed."""
    due: int = 0
    """When to try next, in milliseconds since 1970."""
    why: str = ""
    """What the last attempt came to, in one line."""


class WebhookCount(Struct, frozen=True):
    """How many are not sent."""

    pending: int = 0
    failed: int = 0


class WebhookStore(Protocol):
    """Webhooks of every person. A write is durable when its call returns."""

    async def add_webhook(self, session: str, seq: int) -> WebhookDelivery:
        """The one for this entry, made now if there is none. Raises Refused when there is no such session."""
        ...

    async def pending_webhooks(self) -> Sequence[WebhookDelivery]:
        """Those still to be sent, the oldest first."""
        ...

    async def update_webhook(self, hook: WebhookDelivery) -> None:
        """Keep its state, tries, due and why; one that is settled, or was deleted with its session, stays as it is."""
        ...

    async def count_webhooks(self) -> WebhookCount: ...


class WebhookWrites:
    """All that may change webhooks, on the writer's connection."""

    def __init__(self, db: sqlite3.Connection, clock: Clock) -> None:
        self._db, self._clock = db, clock

    def add_once(self, session: str, seq: int) -> WebhookDelivery:
        if found := self._db.execute(sql_hooks.WEBHOOK_BY_INPUT, (session, seq)).fetchone():
            return _webhook_of(found)
        owner = self._db.execute(sql_hooks.PERSON_OF_SESSION, (session,)).fetchone()
        if owner is None:
            raise no_such_session(session)
        made = WebhookDelivery(f"wh_{secrets.token_hex(16)}", session, owner[0], seq, self._clock() // 1000)
        self._db.execute(sql_hooks.INSERT_WEBHOOK, astuple(made))
        return made

    def update(self, hook: WebhookDelivery) -> None:
        self._db.execute(sql_hooks.UPDATE_WEBHOOK, (hook.id, hook.state, hook.tries, hook.due, hook.why))

    def delete_with_session(self, session: str) -> None:
        self._db.execute(sql_hooks.DELETE_WEBHOOKS, (session,))


def list_pending_webhooks(db: sqlite3.Connection) -> Sequence[WebhookDelivery]:
    return [_webhook_of(row) for row in db.execute(sql_hooks.PENDING_WEBHOOKS)]


def webhook_counts(db: sqlite3.Connection) -> WebhookCount:
    found: dict[str, int] = dict(db.execute(sql_hooks.COUNT_WEBHOOKS).fetchall())
    return WebhookCount(found.get("pending", 0), found.get("failed", 0))


def parse_webhook(row: Sequence[Any]) -> WebhookDelivery:
    """Raises ValueError when this is no webhook."""
    return msgspec.convert(row, WebhookDelivery)


def _webhook_of(row: Sequence[Any]) -> WebhookDelivery:
    """Raises Damaged when it cannot be read."""
    try:
        return parse_webhook(row)
    except ValueError as error:
        raise StoreDamaged(
            f"webhook {row[0]} is damaged ({error}); start Outrider again: it sets the damaged store aside"
        ) from error


def recover_webhooks(damaged: sqlite3.Connection, fresh: sqlite3.Connection, owners: Mapping[str, str]) -> list[str]:
    """Carry over what can be read of the sessions that were recovered, which have these owners. What was lost, if any.

    A row may be older than its last change: then it is sent again, under the id its receiver knows.
    """
    is_whole = True
    try:
        if not damaged.execute(sql_hooks.HAS_WEBHOOKS).fetchone()[0]:
            return []
        for row in damaged.execute(sql_hooks.ALL_WEBHOOKS):
            try:
                hook = parse_webhook(row)
            except ValueError:
                is_whole = False
                continue
            if hook.session in owners:
                fresh.execute(sql_hooks.INSERT_WEBHOOK, astuple(replace(hook, person=owners[hook.session])))
    except UnicodeDecodeError:
        is_whole = False
    except sqlite3.Error as error:
        if is_environmental(error):
            raise
        is_whole = False
    return [] if is_whole else [LOST_WEBHOOKS]
