"""The store's reads of keys, and rows of them checked whenever they are read back."""

import sqlite3
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from outrider.core.errors import StoreDamaged
from outrider.core.key_ports import Key, KeyScope, KeySpec, Person, SpendLimit, SpendPeriod
from outrider.store import sql_keys

BILLION = 1_000_000_000
_scopes_decoder = msgspec.json.Decoder(tuple[KeyScope, ...])


class KeyRow(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """In the order of the table."""

    id: str
    name: str
    person: str
    scopes: str
    rate: int | None
    concurrent: int | None
    digest: bytes
    created: int
    used: int
    revoked: int
    spend: int | None = None
    """Billionths of a dollar."""
    per: SpendPeriod = "total"


def parse_key(row: Sequence[Any]) -> Key:
    """Raises ValueError when this is no key."""
    parsed = msgspec.convert(row, KeyRow)
    spend = None if parsed.spend is None else SpendLimit(parsed.spend / BILLION, parsed.per)
    wish = KeySpec(
        parsed.name, parsed.person, _scopes_decoder.decode(parsed.scopes), parsed.rate, parsed.concurrent, spend
    )
    return Key(parsed.id, wish, parsed.digest, parsed.created, parsed.used, parsed.revoked)


def key_of(row: Sequence[Any]) -> Key:
    """Raises Damaged when it cannot be read."""
    try:
        return parse_key(row)
    except ValueError as error:
        raise StoreDamaged(
            f"key {row[0]} is damaged ({error}); start Outrider again: "
            "it sets the damaged store aside, and keys are made anew"
        ) from error


def find_key(db: sqlite3.Connection, id: str) -> Key | None:
    row = db.execute(sql_keys.KEY_BY_ID, (id,)).fetchone()
    return key_of(row) if row else None


def list_keys(db: sqlite3.Connection) -> Sequence[Key]:
    return [key_of(row) for row in db.execute(sql_keys.ALL_KEYS)]


def spent_since(db: sqlite3.Connection, id: str, since: int) -> float:
    (billionths,) = db.execute(sql_keys.SPENT_SINCE, (id, since)).fetchone()
    return billionths / BILLION


def list_people(db: sqlite3.Connection) -> Sequence[Person]:
    return [Person(*row) for row in db.execute(sql_keys.PEOPLE)]
