"""Keys to the API: what is kept of one, and what a store does with them."""

from collections.abc import Sequence
from typing import Literal, Protocol

from msgspec import Struct

KeyScope = Literal["chat", "read", "admin"]
"""`chat` may begin turns, `read` may look, `admin` may do everything."""

SpendPeriod = Literal["day", "month", "total"]


class SpendLimit(Struct, frozen=True):
    """How many dollars a key's turns may cost: in a day, in a month, or at all."""

    dollars: float
    per: SpendPeriod = "total"


class KeySpec(Struct, frozen=True):
    """What a key is to be."""

    name: str
    person: str
    scopes: tuple[KeyScope, ...]
    rate: int | None = None
    """Requests a minute; None for the server's default."""
    concurrent: int | None = None
    """Requests at once; None for the server's default."""
    spend: SpendLimit | None = None
    """What its turns may cost; None for no limit."""


class Key(Struct, frozen=True):
    """What is kept of a key. The secret is not."""

    id: str
    spec: KeySpec
    digest: bytes
    created: int
    used: int = 0
    """About when it was last used, to a minute; 0 for never."""
    revoked: int = 0
    """When it was revoked; 0 while it holds."""


class Person(Struct, frozen=True):
    """Somebody who has a session or a key here."""

    name: str
    sessions: int
    keys: int
    """Those that hold."""
    active: int
    """When something last happened in a session, or a key was last used."""


class KeyStore(Protocol):
    """Keys to the API, of every person. A write is durable when its call returns."""

    async def create_key(self, id: str, wish: KeySpec, digest: bytes) -> Key:
        """Raises Refused when a key of this name holds already, or the id is taken."""
        ...

    async def find_key(self, id: str) -> Key | None:
        """By its id; also one that is revoked."""
        ...

    async def list_keys(self) -> Sequence[Key]:
        """All that ever were, the oldest first."""
        ...

    async def revoke_key(self, id: str) -> bool:
        """It opens nothing from now on, for good. False when it did not anyway."""
        ...

    async def touch_key(self, id: str) -> None:
        """It is being used; written down at most once a minute."""
        ...

    async def spent(self, id: str, since: int = 0) -> float:
        """Dollars that entries cost whose input it paid for, from this day on: days since 1970, in UTC."""
        ...

    async def people(self) -> Sequence[Person]:
        """Everybody who has a session or a key, latest active first."""
        ...
