"""The inbox of sessions: an input is checked, appended once by its key, and only then acknowledged."""

from collections.abc import Callable, Sequence

from msgspec import Struct

from outrider.core.errors import NameTaken, Refused
from outrider.core.events import Entry, Input
from outrider.core.store_port import Session, Store
from outrider.core.types import Image, ToolSpec
from outrider.system.failpoints import failpoint


class InboxMessage(Struct, frozen=True):
    """A message from outside."""

    text: str
    images: tuple[Image, ...] = ()
    key: str | None = None
    """The sender's idempotency key; the same key is accepted once."""
    address: str = ""
    tools: tuple[ToolSpec, ...] = ()
    payer: str = ""


class Inbox:
    """Accepts inputs. An input that `accept` returned is durable and will be processed."""

    def __init__(
        self,
        store: Store,
        wake: Callable[[str], None],
        *,
        max_characters: int,
        max_queued: int,
        redact: Callable[[str], str] = str,
    ) -> None:
        self._store = store
        self._wake = wake
        self._max_characters = max_characters
        self._max_queued = max_queued
        self._redact = redact

    async def accept(self, session: Session, message: InboxMessage) -> tuple[Entry, bool]:
        """The input's entry, and whether it is new. Raises NameTaken for a key that came with another text before."""
        self._check(message.text, message.images)
        failpoint("input_received")
        text = self._redact(message.text)
        body = Input(text, "person", message.images, session.person, message.address, message.tools, message.payer)
        entry, is_new = await self._store.accept(session.id, body, message.key, self._max_queued)
        if not is_new and isinstance(entry.body, Input) and entry.body.text != text:
            raise NameTaken(f"the key {message.key!r} was used before with another text; use a new key")
        failpoint("input_committed")
        self._wake(session.id)
        return entry, is_new

    def _check(self, text: str, images: Sequence[Image]) -> None:
        if not text.strip() and not images:
            raise Refused("the message is empty")
        if len(text) > self._max_characters:
            raise Refused(
                f"the message has {len(text):,} characters; the limit is {self._max_characters:,} (limits.input). "
                "Put long text into a file in the workspace and name the file"
            )
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError:
                raise Refused("the message is not valid UTF-8 text") from None
