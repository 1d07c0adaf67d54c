"""API keys: their text and digest, spending limits, statements, rows, reads and writes.

A new key is shown once; the store keeps only its digest. The first key is also written to a file that only its owner
can read.
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
from outrider.core.store_port import OWNER, Key, KeyScope, KeySpec, KeyStore, Person, SpendLimit, SpendPeriod
from outrider.store.database import Clock, random_id
from outrider.system.files import explain_os_error, write_atomic

# The columns of a key, in the order of the table and of `KeyRow`.
_KEY_COLUMNS = "id, name, person, scopes, rate, concurrent, digest, created, used, revoked, spend, per"
_SELECT_KEY = f"SELECT {_KEY_COLUMNS} FROM keys "

# A key by its id, active or revoked.
KEY_BY_ID = _SELECT_KEY + "WHERE id = ?1"

# The active key of this name.
ACTIVE_KEY_BY_NAME = _SELECT_KEY + "WHERE name = ?1 AND revoked = 0"

# Every key, the oldest first.
ALL_KEYS = _SELECT_KEY + "ORDER BY created, id"

# One more key.
INSERT_KEY = f"INSERT INTO keys ({_KEY_COLUMNS}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, 0, 0, ?9, ?10)"

# Revoke a key.
REVOKE_KEY = "UPDATE keys SET revoked = ?2 WHERE id = ?1 AND revoked = 0"

# Record the use of a key, at most once a minute; a clock that was set back counts as a minute.
TOUCH_KEY = "UPDATE keys SET used = ?2 WHERE id = ?1 AND abs(?2 - used) >= 60000"

# Add the cost of an entry that this key pays for.
ADD_SPEND = """
INSERT INTO key_spend (key, day, billionths) VALUES (?1, ?2, ?3)
ON CONFLICT (key, day) DO UPDATE SET billionths = billionths + ?3
"""

# What a key has spent from this day on.
SPENT_SINCE = "SELECT coalesce(sum(billionths), 0) FROM key_spend WHERE key = ?1 AND day >= ?2"

# Everyone who has a session or a key: how many sessions and active keys, and when they were last active.
PEOPLE = """
SELECT person, sum(sessions), sum(keys), max(active)
FROM (SELECT person, count(*) AS sessions, 0 AS keys, max(touched) / 1000 AS active FROM sessions GROUP BY person
      UNION ALL SELECT person, 0, sum(revoked = 0), max(used) FROM keys GROUP BY person)
GROUP BY person ORDER BY max(active) DESC, person
"""

# How many there are, for a recovery, which keeps none.
COUNT_KEYS = "SELECT count(*) FROM keys"
KEY_PATTERN = re.compile(r"ork_([a-z2-7]{8})_([0-9a-f]{64})", re.ASCII)
"""A key as its owner has it: its id, which is not secret, and 256 random bits."""


def split_key(text: str) -> tuple[str, str] | None:
    """The id and the secret of a key, or None if this is not a key."""
    match = KEY_PATTERN.fullmatch(text)
    return (match[1], match[2]) if match else None


def digest_of(secret: str) -> bytes:
    """What is stored in place of a secret.

    One round of SHA-256 without a salt: slow hashes protect passwords that can be guessed, not 256 random bits.
    """
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()


def secret_matches(secret: str, digest: bytes) -> bool:
    """Whether this secret has this digest. Takes the same time for every secret of the same length."""
    return hmac.compare_digest(digest_of(secret), digest)


_MIN_DOLLARS, _MAX_DOLLARS = 0.0001, 1_000_000.0
DAY_MS = 86_400_000
_SPEND_PATTERN = re.compile(r"\$?(\d{1,7}(?:\.\d{1,9})?)(?:/(day|month))?", re.ASCII)


def parse_spend(text: str) -> SpendLimit:
    """`5/day`, `20/month`, or `5` for a total. Raises Refused."""
    parts = _SPEND_PATTERN.fullmatch(text.strip())
    if parts is None or not _MIN_DOLLARS <= float(parts[1]) <= _MAX_DOLLARS:
        raise Refused(
            f"{text[:40]!r} is not a spending limit: write dollars, such as 5/day, 20/month, or 5 for a total"
        )
    match parts[2]:
        case "day":
            return SpendLimit(float(parts[1]), "day")
        case "month":
            return SpendLimit(float(parts[1]), "month")
        case _:
            return SpendLimit(float(parts[1]))


def render_spend(spend: SpendLimit) -> str:
    """As `parse_spend` reads it."""
    dollars = f"{spend.dollars:.9f}".rstrip("0").rstrip(".")
    return dollars if spend.per == "total" else f"{dollars}/{spend.per}"


def render_limit(spend: SpendLimit) -> str:
    """For people: `$5.00 a day`."""
    whole, _, parts = f"{spend.dollars:.9f}".rstrip("0").partition(".")
    dollars = f"${whole}.{parts:0<2}"
    return f"{dollars} in total" if spend.per == "total" else f"{dollars} a {spend.per}"


def first_day(spend: SpendLimit | None, now: int) -> int:
    """The first day whose spending counts at `now` (milliseconds), in days since 1970 in UTC."""
    today = now // DAY_MS
    match spend:
        case SpendLimit(per="day"):
            return today
        case SpendLimit(per="month"):
            return today - _utc(now).day + 1
        case _:
            return 0


def seconds_until_reset(spend: SpendLimit, now: int) -> float | None:
    """Seconds until the next day or month begins in UTC; None for a total, which never resets."""
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
    """A row of the table, in its order."""

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
    """Raises ValueError if this is not a key."""
    parsed = msgspec.convert(row, KeyRow)
    spend = None if parsed.spend is None else SpendLimit(parsed.spend / BILLION, parsed.per)
    scopes = _scopes_decoder.decode(parsed.scopes)
    spec = KeySpec(parsed.name, parsed.person, scopes, parsed.rate, parsed.concurrent, spend)
    return Key(parsed.id, spec, parsed.digest, parsed.created, parsed.used, parsed.revoked)


def _key_of(row: Sequence[Any]) -> Key:
    """Raises StoreDamaged if it cannot be read."""
    try:
        return parse_key(row)
    except ValueError as error:
        raise StoreDamaged(
            f"key {row[0]} is damaged ({error}); start Outrider again: "
            "it sets the damaged store aside; then create new keys"
        ) from error


def find_key(db: sqlite3.Connection, id: str) -> Key | None:
    row = db.execute(KEY_BY_ID, (id,)).fetchone()
    return _key_of(row) if row else None


def list_keys(db: sqlite3.Connection) -> Sequence[Key]:
    return [_key_of(row) for row in db.execute(ALL_KEYS)]


def spent_since(db: sqlite3.Connection, id: str, since: int) -> float:
    (billionths,) = db.execute(SPENT_SINCE, (id, since)).fetchone()
    return billionths / BILLION


def list_people(db: sqlite3.Connection) -> Sequence[Person]:
    return [Person(*row) for row in db.execute(PEOPLE)]


class KeyWrites:
    """Writes to keys, on the writer's connection."""

    def __init__(self, db: sqlite3.Connection, clock: Clock) -> None:
        self._db, self._clock = db, clock

    def create(self, id: str, spec: KeySpec, digest: bytes) -> Key:
        if self._db.execute(ACTIVE_KEY_BY_NAME, (spec.name,)).fetchone():
            raise Refused(f"a key named {spec.name!r} already exists; revoke it first, or choose another name")
        if self._db.execute(KEY_BY_ID, (id,)).fetchone():
            raise Refused(f"a key with the id {id!r} already exists; create another")
        key = Key(id, spec, digest, self._clock() // 1000)
        scopes = msgspec.json.encode(spec.scopes).decode()
        columns = (id, spec.name, spec.person, scopes, spec.rate, spec.concurrent, digest, key.created)
        spend = (_billionths(spec.spend.dollars), spec.spend.per) if spec.spend else (None, "total")
        self._db.execute(INSERT_KEY, (*columns, *spend))
        return key

    def revoke(self, id: str) -> bool:
        return self._db.execute(REVOKE_KEY, (id, self._clock() // 1000)).rowcount > 0

    def touch(self, id: str) -> None:
        self._db.execute(TOUCH_KEY, (id, self._clock() // 1000))


def add_spend(db: sqlite3.Connection, id: str, dollars: float, at: int) -> None:
    """Add to what a key has spent on this day (`at`, in milliseconds), in the transaction of the entry it pays for."""
    db.execute(ADD_SPEND, (id, at // DAY_MS, _billionths(dollars)))


def _billionths(dollars: float) -> int:
    return round(dollars * BILLION)


FIRST_KEY_NAME = "first"
_MAX_NAME = 60


class KeyView(Struct, frozen=True):
    """What may be shown of a key."""

    id: str
    name: str
    person: str
    scopes: tuple[KeyScope, ...]
    rate: int | None
    concurrent: int | None
    spend: str | None
    """Its spending limit, such as `5/day`."""
    spent: float
    """Dollars spent of that."""
    created: int
    used: int
    revoked: int


def default_scopes(person: str) -> tuple[KeyScope, ...]:
    """The scopes of a new key. Only the owner's keys answer questions, unless the owner says otherwise."""
    return ("chat", "read", "approve") if person == OWNER else ("chat", "read")


def first_key_file(home: Path) -> Path:
    """The file with the key that the first run created."""
    return home / "api_key"


class KeyCreator(Protocol):
    """Stores a new key: the store itself, or a client that passes it on."""

    async def create_key(self, id: str, spec: KeySpec, digest: bytes) -> Key: ...


async def make_key(store: KeyCreator, spec: KeySpec) -> tuple[Key, str]:
    """Create a key: what is stored of it, and its text, which cannot be shown again."""
    id, secret = _generate_key(spec)
    return await store.create_key(id, spec, digest_of(secret)), _key_text(id, secret)


async def ensure_key(home: Path, store: KeyStore) -> str | None:
    """If there is no key at all, create one with every scope, write it to its file and return its text; else None."""
    if await store.list_keys():
        return None
    spec = KeySpec(FIRST_KEY_NAME, OWNER, ("admin",))
    id, secret = _generate_key(spec)
    # The file first: interrupted here, the next start finds no key and creates both again. The other way round it would
    # find a key that nobody has.
    write_secret(first_key_file(home), _key_text(id, secret))
    await store.create_key(id, spec, digest_of(secret))
    return _key_text(id, secret)


def remove_first_key_file(home: Path, id: str) -> None:
    """Remove the file of the first key, if this is its id."""
    path = first_key_file(home)
    if path.exists() and f"ork_{id}_" in path.read_text("utf-8", "replace"):
        path.unlink()


def render_key(key: Key, spent: float) -> KeyView:
    """`spent` counts from the first day of its limit's day or month, or from the creation of the key."""
    spec = key.spec
    return KeyView(
        id=key.id,
        name=spec.name,
        person=spec.person,
        scopes=spec.scopes,
        rate=spec.rate,
        concurrent=spec.concurrent,
        spend=render_spend(spec.spend) if spec.spend else None,
        spent=spent,
        created=key.created,
        used=key.used,
        revoked=key.revoked,
    )


def _generate_key(spec: KeySpec) -> tuple[str, str]:
    for what, text in (("name", spec.name), ("person", spec.person)):
        if not text or len(text) > _MAX_NAME or not text.isprintable() or text != text.strip():
            raise Refused(f"the {what} of a key needs 1 to {_MAX_NAME} printable characters and no space at its ends")
    if not spec.scopes:
        raise Refused("a key needs a scope: chat, read, approve or admin")
    if any(limit is not None and limit < 1 for limit in (spec.rate, spec.concurrent)):
        raise Refused("a limit of a key must be at least 1")
    return random_id(8), secrets.token_hex(32)


def _key_text(id: str, secret: str) -> str:
    return f"ork_{id}_{secret}"


def write_secret(path: Path, text: str) -> None:
    """Write a file with this line: completely or not at all, and readable only by its owner."""
    try:
        write_atomic(path, f"{text}\n".encode("ascii"))
    except OSError as error:
        raise explain_os_error(error, path.parent) from error
