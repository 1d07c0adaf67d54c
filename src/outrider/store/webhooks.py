"""Webhook deliveries: their statements, rows, reads and writes.

A webhook is due for each input that asked for one. Its id is fixed when the input is accepted; every attempt to send it
has that id.
"""

import secrets
import sqlite3
from collections.abc import Sequence
from typing import Any, Literal, Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import astuple

from outrider.store.database import Clock
from outrider.store.errors import damaged_row, no_such_session

# The columns of a webhook, in the order of the table and of `WebhookDelivery`.
_WEBHOOK_COLUMNS = "id, session, person, seq, created, state, tries, due, why"
_SELECT_WEBHOOK = f"SELECT {_WEBHOOK_COLUMNS} FROM hooks "

# The webhook for this input.
WEBHOOK_BY_INPUT = _SELECT_WEBHOOK + "WHERE session = ?1 AND seq = ?2"

# Those still to be sent, the oldest first.
PENDING_WEBHOOKS = _SELECT_WEBHOOK + "WHERE state <> 'sent' AND state = 'pending' ORDER BY created"

# How many are not sent, pending and failed.
COUNT_WEBHOOKS = "SELECT state, count(*) FROM hooks WHERE state <> 'sent' GROUP BY state"

# The person of a session.
PERSON_OF_SESSION = "SELECT person FROM sessions WHERE id = ?1"

# One more webhook.
INSERT_WEBHOOK = f"INSERT INTO hooks ({_WEBHOOK_COLUMNS}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)"

# The outcome of an attempt. A webhook that was sent or has failed does not change any more.
UPDATE_WEBHOOK = "UPDATE hooks SET state = ?2, tries = ?3, due = ?4, why = ?5 WHERE id = ?1 AND state = 'pending'"

# Delete the webhooks of a session.
DELETE_WEBHOOKS = "DELETE FROM hooks WHERE session = ?1"

# All of them, to check and to recover them.
ALL_WEBHOOKS = _SELECT_WEBHOOK + "ORDER BY id"

WebhookState = Literal["pending", "sent", "failed"]


class WebhookDelivery(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A webhook for one input, in the order of the table."""

    id: str
    """Random, and the same in every attempt; the receiver recognises a repeat by it."""
    session: str
    person: str
    seq: int
    """The input whose end the webhook reports."""
    created: int
    state: WebhookState = "pending"
    tries: int = 0
    """Attempts that failed."""
    due: int = 0
    """When to try next, in milliseconds since 1970."""
    why: str = ""
    """The outcome of the last attempt, in one line."""


class WebhookCount(Struct, frozen=True):
    """How many webhooks are not sent."""

    pending: int = 0
    failed: int = 0


class WebhookStore(Protocol):
    """Webhooks of every person. A write is durable when its call returns."""

    async def add_webhook(self, session: str, seq: int) -> WebhookDelivery:
        """The webhook for this input, created if it is new. Raises Refused if there is no such session."""
        ...

    async def pending_webhooks(self) -> Sequence[WebhookDelivery]:
        """Those still to be sent, the oldest first."""
        ...

    async def update_webhook(self, hook: WebhookDelivery) -> None:
        """Store its state, tries, due and why, unless it was sent, has failed, or was deleted with its session."""
        ...

    async def count_webhooks(self) -> WebhookCount: ...


class WebhookWrites:
    """Writes to webhooks, on the writer's connection."""

    def __init__(self, db: sqlite3.Connection, clock: Clock) -> None:
        self._db, self._clock = db, clock

    def add_once(self, session: str, seq: int) -> WebhookDelivery:
        if row := self._db.execute(WEBHOOK_BY_INPUT, (session, seq)).fetchone():
            return _webhook_of(row)
        owner = self._db.execute(PERSON_OF_SESSION, (session,)).fetchone()
        if owner is None:
            raise no_such_session(session)
        webhook = WebhookDelivery(f"wh_{secrets.token_hex(16)}", session, owner[0], seq, self._clock() // 1000)
        self._db.execute(INSERT_WEBHOOK, astuple(webhook))
        return webhook

    def update(self, hook: WebhookDelivery) -> None:
        self._db.execute(UPDATE_WEBHOOK, (hook.id, hook.state, hook.tries, hook.due, hook.why))


def list_pending_webhooks(db: sqlite3.Connection) -> Sequence[WebhookDelivery]:
    return [_webhook_of(row) for row in db.execute(PENDING_WEBHOOKS)]


def webhook_counts(db: sqlite3.Connection) -> WebhookCount:
    counts: dict[str, int] = dict(db.execute(COUNT_WEBHOOKS).fetchall())
    return WebhookCount(counts.get("pending", 0), counts.get("failed", 0))


def parse_webhook(row: Sequence[Any]) -> WebhookDelivery:
    """Raises ValueError if this is not a webhook."""
    return msgspec.convert(row, WebhookDelivery)


def _webhook_of(row: Sequence[Any]) -> WebhookDelivery:
    """Raises StoreDamaged if it cannot be read."""
    try:
        return parse_webhook(row)
    except ValueError as error:
        raise damaged_row(f"webhook {row[0]}", error) from error
