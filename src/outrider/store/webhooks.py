"""Every statement on webhooks, whole and named, with one line of purpose each.

Webhooks that are owed: what is kept of one, and all that reads, changes or rescues those rows.
"""

import secrets
import sqlite3
from collections.abc import Sequence
from typing import Any, Literal, Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import astuple

from outrider.core.errors import StoreDamaged
from outrider.store.database import Clock
from outrider.store.errors import no_such_session

# The columns of a webhook, in the order of the table and of `hooks.Hook`.
_WEBHOOK_COLUMNS = "id, session, person, seq, created, state, tries, due, why"
_SELECT_WEBHOOK = f"SELECT {_WEBHOOK_COLUMNS} FROM hooks "


# The one that is owed for this input, or was.
WEBHOOK_BY_INPUT = _SELECT_WEBHOOK + "WHERE session = ?1 AND seq = ?2"


# Those still to be sent, the oldest first.
PENDING_WEBHOOKS = _SELECT_WEBHOOK + "WHERE state <> 'sent' AND state = 'pending' ORDER BY created"


# How many are not sent, by whether that can still happen.
COUNT_WEBHOOKS = "SELECT state, count(*) FROM hooks WHERE state <> 'sent' GROUP BY state"


# The person of a session that exists.
PERSON_OF_SESSION = "SELECT person FROM sessions WHERE id = ?1"


# One more is owed.
INSERT_WEBHOOK = f"INSERT INTO hooks ({_WEBHOOK_COLUMNS}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)"


# What an attempt came to. One that is settled stays as it is.
UPDATE_WEBHOOK = "UPDATE hooks SET state = ?2, tries = ?3, due = ?4, why = ?5 WHERE id = ?1 AND state = 'pending'"


# A session goes, and with it what would have been told of it.
DELETE_WEBHOOKS = "DELETE FROM hooks WHERE session = ?1"


# All of them, for a check or a salvage.
ALL_WEBHOOKS = _SELECT_WEBHOOK + "ORDER BY id"

WebhookState = Literal["pending", "sent", "failed"]


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
        if found := self._db.execute(WEBHOOK_BY_INPUT, (session, seq)).fetchone():
            return _webhook_of(found)
        owner = self._db.execute(PERSON_OF_SESSION, (session,)).fetchone()
        if owner is None:
            raise no_such_session(session)
        made = WebhookDelivery(f"wh_{secrets.token_hex(16)}", session, owner[0], seq, self._clock() // 1000)
        self._db.execute(INSERT_WEBHOOK, astuple(made))
        return made

    def update(self, hook: WebhookDelivery) -> None:
        self._db.execute(UPDATE_WEBHOOK, (hook.id, hook.state, hook.tries, hook.due, hook.why))


def list_pending_webhooks(db: sqlite3.Connection) -> Sequence[WebhookDelivery]:
    return [_webhook_of(row) for row in db.execute(PENDING_WEBHOOKS)]


def webhook_counts(db: sqlite3.Connection) -> WebhookCount:
    found: dict[str, int] = dict(db.execute(COUNT_WEBHOOKS).fetchall())
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
