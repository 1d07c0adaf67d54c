"""The stores that the contract suite runs against, each opened by a function of its folder."""

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

from outrider.core.events import Body, Entry, Input
from outrider.core.store_port import Session, Store, TaskStore
from outrider.store.sqlite import open_store


class WholeStore(Store, TaskStore, Protocol):
    """Everything that the store of a home does."""


Opener = Callable[[Path], AbstractAsyncContextManager[WholeStore]]

STORES: Mapping[str, Opener] = {"sqlite": open_store}


async def session_with(store: Store, *texts: str, person: str = "ann", name: str = "") -> Session:
    """A new session with these inputs waiting."""
    session = await store.create(person, name, "/folder")
    for text in texts:
        await store.accept(session.id, Input(text, person=person), None, queue=20)
    return session


async def write(store: Store, session: str, *bodies: Body) -> list[Entry | None]:
    """Claim the session and append these."""
    claim = await store.claim(session)
    return [await store.append(session, body, claim.generation) for body in bodies]


async def bodies(store: Store, session: str) -> list[Body]:
    return [entry.body for entry in await store.read(session)]
