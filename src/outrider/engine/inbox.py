"""Where inputs come in: bounded, appended once by key, and only then acknowledged."""

from collections.abc import Callable, Sequence

from msgspec import Struct

from outrider.core.errors import NameTaken, Refused
from outrider.core.events import Entry, Input
from outrider.core.store_port import Session, Store
from outrider.core.types import Image, ToolSpec
from outrider.system.failpoints import failpoint


class InboxMessage(Struct, frozen=True):
    """What somebody hands in at the door."""

    text: str
    images: tuple[Image, ...] = ()
    key: str | None = None
    """What it is known by where it comes from; the same key is taken once."""
    address: str = ""
    tools: tuple[ToolSpec, ...] = ()
    payer: str = ""


class Inbox:
    """The one way in. What `accept` returned is durable and will be dealt with."""

    def __init__(
        self,
        store: Store,
        wake: Callable[[str], None],
        *,
        longest: int,
        queue: int,
        redact: Callable[[str], str] = str,
    ) -> None:
        self._store = store
        self._wake = wake
        self._longest = longest
        self._queue = queue
        self.redact = redact

    async def accept(self, session: Session, message: InboxMessage) -> tuple[Entry, bool]:
        """The input's entry, and whether it is new. Raises Refused, and Taken for a key that came with other words."""
        self._check(message.text, message.images)
        failpoint("input_received")
        text = self.redact(message.text)
        body = Input(text, "person", message.images, session.person, message.address, message.tools, message.payer)
        entry, is_new = await self._store.accept(session.id, body, message.key, self._queue)
        if not is_new and isinstance(entry.body, Input) and entry.body.text != text:
            raise NameTaken(f"the key {message.key!r} was given before, with other words; use another key for these")
        failpoint("input_committed")
        self._wake(session.id)
        return entry, is_new

    def _check(self, text: str, images: Sequence[Image]) -> None:
        if not text.strip() and not images:
            raise Refused("the message is empty")
        if len(text) > self._longest:
            raise Refused(
                f"the message has {len(text):,} characters; at most {self._longest:,} are taken (limits.input). "
                "Put long material into a file of the workspace and name the file"
            )
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError:
                raise Refused("the message is not valid UTF-8 text") from None
