"""Makes keys. A key is shown to whoever has it made, once; the first one is also left in a file for its owner alone.

Every statement on keys, whole and named, with one line of purpose each.

What a key looks like, and whether a secret opens it. Pure.

What a key may spend, as people write it, and which days a limit counts. Pure.

The store's reads of keys, and rows of them checked whenever they are read back.

The store's writes of keys, each one function that runs inside the writer's transaction.
"""

import hashlib
import hmac
import re
import secrets
import sqlite3
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from outrider.core.errors import Refused, StoreDamaged
from outrider.core.store_port import Key, KeyScope, KeySpec, KeyStore, Person, SpendLimit, SpendPeriod
from outrider.store.database import Clock
from outrider.store.errors import explain
from outrider.system.files import write_atomic

# The columns of a key, in the order of the table and of `read_keys.KeyRow`.
_KEY_COLUMNS = "id, name, person, scopes, rate, concurrent, digest, created, used, revoked, spend, per"
_SELECT_KEY = f"SELECT {_KEY_COLUMNS} FROM keys "


# A key by its id, whether or not it holds.
KEY_BY_ID = _SELECT_KEY + "WHERE id = ?1"


# The key of this name that holds.
ACTIVE_KEY_BY_NAME = _SELECT_KEY + "WHERE name = ?1 AND revoked = 0"


# Every key, the oldest first.
ALL_KEYS = _SELECT_KEY + "ORDER BY created, id"


# One more key.
INSERT_KEY = f"INSERT INTO keys ({_KEY_COLUMNS}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, 0, 0, ?9, ?10)"


# It opens nothing any more.
REVOKE_KEY = "UPDATE keys SET revoked = ?2 WHERE id = ?1 AND revoked = 0"


# It was used now, unless that was written down less than a minute ago; a clock set back counts as a minute.
TOUCH_KEY = "UPDATE keys SET used = ?2 WHERE id = ?1 AND abs(?2 - used) >= 60000"


# An entry that this key pays for has cost something.
ADD_SPEND = """
INSERT INTO key_spend (key, day, billionths) VALUES (?1, ?2, ?3)
ON CONFLICT (key, day) DO UPDATE SET billionths = billionths + ?3
"""


# What a key has paid from this day on.
SPENT_SINCE = "SELECT coalesce(sum(billionths), 0) FROM key_spend WHERE key = ?1 AND day >= ?2"


# Everybody who has a session or a key: how many of each (keys that hold), and when they were last active.
PEOPLE = """
SELECT person, sum(sessions), sum(keys), max(active)
FROM (SELECT person, count(*) AS sessions, 0 AS keys, max(touched) / 1000 AS active FROM sessions GROUP BY person
      UNION ALL SELECT person, 0, sum(revoked = 0), max(used) FROM keys GROUP BY person)
GROUP BY person ORDER BY max(active) DESC, person
"""


# Whether a store is new enough to hold keys.
HAS_KEYS = "SELECT count(*) FROM sqlite_schema WHERE name = 'keys'"


# How many there are, for a salvage that carries none over.
COUNT_KEYS = "SELECT count(*) FROM keys"
KEY_PATTERN = re.compile(r"ork_([a-z2-7]{8})_([0-9a-f]{64})", re.ASCII)
"""A whole key, as its owner has it: its id, which is no secret, and 256 random bits."""


def split_key(text: str) -> tuple[str, str] | None:
    """The id and the secret of a key, or None when this is none of ours."""
    found = KEY_PATTERN.fullmatch(text)
    return (found[1], found[2]) if found else None


def digest_of(secret: str) -> bytes:
    """What is kept in place of a secret.

    One round of SHA-256 and no salt: slow hashes make guessing a password dear, and nobody guesses 256 random bits.
    """
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()


def secret_matches(secret: str, digest: bytes) -> bool:
    """Whether this is the secret that was digested. Takes as long for any secret of the same length."""
    return hmac.compare_digest(digest_of(secret), digest)


LEAST, MOST = 0.0001, 1_000_000.0
DAY_MS = 86_400_000
_SPEND_PATTERN = re.compile(r"\$?(\d{1,7}(?:\.\d{1,9})?)(?:/(day|month))?", re.ASCII)


def parse_spend(text: str) -> SpendLimit:
    """`5/day`, `20/month`, or `5` for a total. Raises Refused."""
    found = _SPEND_PATTERN.fullmatch(text.strip())
    if found is None or not LEAST <= float(found[1]) <= MOST:
        raise Refused(
            f"{text[:40]!r} is no limit: write dollars, such as 5/day, 20/month, or 5 for all it will ever spend"
        )
    match found[2]:
        case "day":
            return SpendLimit(float(found[1]), "day")
        case "month":
            return SpendLimit(float(found[1]), "month")
        case _:
            return SpendLimit(float(found[1]))


def render_spend(spend: SpendLimit) -> str:
    """As `parse_spend` reads it."""
    dollars = f"{spend.dollars:.9f}".rstrip("0").rstrip(".")
    return dollars if spend.per == "total" else f"{dollars}/{spend.per}"


def render_limit(spend: SpendLimit) -> str:
    """For people: `$5.00 a day`."""
    whole, _, parts = f"{spend.dollars:.9f}".rstrip("0").partition(".")
    dollars = f"${whole}.{parts:0<2}"
    return f"{dollars} in all" if spend.per == "total" else f"{dollars} a {spend.per}"


def first_day(spend: SpendLimit | None, now: int) -> int:
    """The first day that counts now (milliseconds), in days since 1970 in UTC."""
    today = now // DAY_MS
    match spend:
        case SpendLimit(per="day"):
            return today
        case SpendLimit(per="month"):
            return today - _utc(now).day + 1
        case _:
            return 0


def seconds_until_reset(spend: SpendLimit, now: int) -> float | None:
    """Until the next day or month begins, in UTC; None when nothing ever begins anew."""
    match spend.per:
        case "day":
            return (DAY_MS - now % DAY_MS) / 1000
        case "month":
            moment = _utc(now)
            following = (moment.replace(day=1, hour=0, minute=0, second=0) + timedelta(days=32)).replace(day=1)
            return following.timestamp() - now / 1000
        case "total":
            return None


def _utc(now: int) -> datetime:
    return datetime.fromtimestamp(now // 1000, UTC)


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
    row = db.execute(KEY_BY_ID, (id,)).fetchone()
    return key_of(row) if row else None


def list_keys(db: sqlite3.Connection) -> Sequence[Key]:
    return [key_of(row) for row in db.execute(ALL_KEYS)]


def spent_since(db: sqlite3.Connection, id: str, since: int) -> float:
    (billionths,) = db.execute(SPENT_SINCE, (id, since)).fetchone()
    return billionths / BILLION


def list_people(db: sqlite3.Connection) -> Sequence[Person]:
    return [Person(*row) for row in db.execute(PEOPLE)]


class KeyWrites:
    """All that may change keys, on the writer's connection."""

    def __init__(self, db: sqlite3.Connection, clock: Clock) -> None:
        self._db, self._clock = db, clock

    def create(self, id: str, spec: KeySpec, digest: bytes) -> Key:
        if self._db.execute(ACTIVE_KEY_BY_NAME, (spec.name,)).fetchone():
            raise Refused(f"there is a key called {spec.name!r} already; revoke it first, or choose another name")
        if self._db.execute(KEY_BY_ID, (id,)).fetchone():
            raise Refused(f"there is a key with the id {id!r} already; make another")
        made = Key(id, spec, digest, self._clock() // 1000)
        scopes = msgspec.json.encode(spec.scopes).decode()
        told = (id, spec.name, spec.person, scopes, spec.rate, spec.concurrent, digest, made.created)
        spend = (_billionths(spec.spend.dollars), spec.spend.per) if spec.spend else (None, "total")
        self._db.execute(INSERT_KEY, (*told, *spend))
        return made

    def revoke(self, id: str) -> bool:
        return self._db.execute(REVOKE_KEY, (id, self._clock() // 1000)).rowcount > 0

    def touch(self, id: str) -> None:
        self._db.execute(TOUCH_KEY, (id, self._clock() // 1000))

    def add_spend(self, id: str, dollars: float, at: int) -> None:
        """Add to what a key has spent on this day (`at` is in milliseconds), with the entry that it pays for."""
        self._db.execute(ADD_SPEND, (id, at // DAY_MS, _billionths(dollars)))


def _billionths(dollars: float) -> int:
    return round(dollars * BILLION)


FIRST_KEY_NAME = "first"
_KEY_LETTERS = "abcdefghijklmnopqrstuvwxyz234567"
_MAX_NAME = 60


class KeyView(Struct, frozen=True):
    """What may be told of a key."""

    id: str
    name: str
    person: str
    scopes: tuple[KeyScope, ...]
    rate: int | None
    concurrent: int | None
    spend: str | None
    """What it may spend, such as `5/day`."""
    spent: float
    """Dollars of that."""
    created: int
    used: int
    revoked: int


def first_key_file(home: Path) -> Path:
    """Where the key that was made at the first run lies."""
    return home / "api_key"


class KeyCreator(Protocol):
    """Where a new key is kept: the store, or whoever passes it on to the store."""

    async def create_key(self, id: str, spec: KeySpec, digest: bytes) -> Key: ...


async def make_key(store: KeyCreator, spec: KeySpec) -> tuple[Key, str]:
    """A new key: what is kept of it, and the key itself, which nobody can tell again."""
    id, secret = _generate_key(spec)
    return await store.create_key(id, spec, digest_of(secret)), _key_text(id, secret)


async def ensure_key(home: Path, store: KeyStore) -> str | None:
    """Where there is no key at all, make one that may do everything, leave it in its file, and tell it; else None."""
    if await store.list_keys():
        return None
    wish = KeySpec(FIRST_KEY_NAME, "owner", ("admin",))
    id, secret = _generate_key(wish)
    # The file first: cut here, the next start finds no key and makes both anew. The other way round it would find one
    # that nobody has.
    write_private(first_key_file(home), _key_text(id, secret))
    await store.create_key(id, wish, digest_of(secret))
    return _key_text(id, secret)


def remove_first_key_file(home: Path, id: str) -> None:
    """Remove the file of the first key, if this is the one."""
    path = first_key_file(home)
    if path.exists() and f"ork_{id}_" in path.read_text("utf-8", "replace"):
        path.unlink()


def render_key(key: Key, spent: float) -> KeyView:
    """`spent` counts from the beginning of the day or month that its limit is for, or from its own."""
    wish = key.spec
    return KeyView(
        id=key.id,
        name=wish.name,
        person=wish.person,
        scopes=wish.scopes,
        rate=wish.rate,
        concurrent=wish.concurrent,
        spend=render_spend(wish.spend) if wish.spend else None,
        spent=spent,
        created=key.created,
        used=key.used,
        revoked=key.revoked,
    )


def _generate_key(spec: KeySpec) -> tuple[str, str]:
    for what, text in (("name", spec.name), ("person", spec.person)):
        if not text or len(text) > _MAX_NAME or not text.isprintable() or text != text.strip():
            raise Refused(f"a key's {what} has 1 to {_MAX_NAME} printable characters and no space at its ends")
    if not spec.scopes:
        raise Refused("a key needs a scope: chat, read or admin")
    if any(limit is not None and limit < 1 for limit in (spec.rate, spec.concurrent)):
        raise Refused("a limit of a key is at least 1")
    return "".join(secrets.choice(_KEY_LETTERS) for _ in range(8)), secrets.token_hex(32)


def _key_text(id: str, secret: str) -> str:
    return f"ork_{id}_{secret}"


def write_private(path: Path, text: str) -> None:
    """Write a file with this line: all or nothing, and readable by its owner from the first byte on."""
    try:
        write_atomic(path, f"{text}\n".encode("ascii"))
    except OSError as error:
        raise explain(error, path.parent) from error
