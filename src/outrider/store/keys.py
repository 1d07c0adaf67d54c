"""Makes keys. A key is shown to whoever has it made, once; the first one is also left in a file for its owner alone."""

import os
import secrets
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from outrider.core.errors import Refused
from outrider.core.key_ports import Key, KeyScope, KeySpec, KeyStore
from outrider.store.connect import fsync_folder
from outrider.store.faults import explain
from outrider.store.key_text import digest_of
from outrider.store.spending import render_spend

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

    async def create_key(self, id: str, wish: KeySpec, digest: bytes) -> Key: ...


async def make_key(store: KeyCreator, wish: KeySpec) -> tuple[Key, str]:
    """A new key: what is kept of it, and the key itself, which nobody can tell again."""
    id, secret = _generate_key(wish)
    return await store.create_key(id, wish, digest_of(secret)), _key_text(id, secret)


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


def _generate_key(wish: KeySpec) -> tuple[str, str]:
    for what, text in (("name", wish.name), ("person", wish.person)):
        if not text or len(text) > _MAX_NAME or not text.isprintable() or text != text.strip():
            raise Refused(f"a key's {what} has 1 to {_MAX_NAME} printable characters and no space at its ends")
    if not wish.scopes:
        raise Refused("a key needs a scope: chat, read or admin")
    if any(limit is not None and limit < 1 for limit in (wish.rate, wish.concurrent)):
        raise Refused("a limit of a key is at least 1")
    return "".join(secrets.choice(_KEY_LETTERS) for _ in range(8)), secrets.token_hex(32)


def _key_text(id: str, secret: str) -> str:
    return f"ork_{id}_{secret}"


def write_private(path: Path, text: str) -> None:
    """Write a file with this line: all or nothing, and readable by its owner from the first byte on."""
    making = path.with_name(path.name + ".new")
    try:
        making.unlink(missing_ok=True)
        with open(os.open(making, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        making.replace(path)
        fsync_folder(path.parent)
    except OSError as error:
        raise explain(error, path.parent) from error
