"""The store's writes of keys, each one function that runs inside the writer's transaction."""

import sqlite3

import msgspec

from outrider.core.errors import Refused
from outrider.core.key_ports import Key, KeySpec
from outrider.store import sql_keys
from outrider.store.journal import Clock
from outrider.store.read_keys import BILLION
from outrider.store.spending import DAY_MS


class KeyWrites:
    """All that may change keys, on the writer's connection."""

    def __init__(self, db: sqlite3.Connection, clock: Clock) -> None:
        self._db, self._clock = db, clock

    def create(self, id: str, wish: KeySpec, digest: bytes) -> Key:
        if self._db.execute(sql_keys.ACTIVE_KEY_BY_NAME, (wish.name,)).fetchone():
            raise Refused(f"there is a key called {wish.name!r} already; revoke it first, or choose another name")
        if self._db.execute(sql_keys.KEY_BY_ID, (id,)).fetchone():
            raise Refused(f"there is a key with the id {id!r} already; make another")
        made = Key(id, wish, digest, self._clock() // 1000)
        scopes = msgspec.json.encode(wish.scopes).decode()
        told = (id, wish.name, wish.person, scopes, wish.rate, wish.concurrent, digest, made.created)
        spend = (_billionths(wish.spend.dollars), wish.spend.per) if wish.spend else (None, "total")
        self._db.execute(sql_keys.INSERT_KEY, (*told, *spend))
        return made

    def revoke(self, id: str) -> bool:
        return self._db.execute(sql_keys.REVOKE_KEY, (id, self._clock() // 1000)).rowcount > 0

    def touch(self, id: str) -> None:
        self._db.execute(sql_keys.TOUCH_KEY, (id, self._clock() // 1000))

    def add_spend(self, id: str, dollars: float, at: int) -> None:
        """Add to what a key has spent on this day (`at` is in milliseconds), with the entry that it pays for."""
        self._db.execute(sql_keys.ADD_SPEND, (id, at // DAY_MS, _billionths(dollars)))


def _billionths(dollars: float) -> int:
    return round(dollars * BILLION)
