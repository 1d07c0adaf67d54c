"""Where inputs come in: bounded, appended once by key, and only then acknowledged."""

from collections.abc import Callable, Sequence

from outrider.config.fail import point
from outrider.core.errors import Refused
from outrider.core.events import Entry, Input
from outrider.core.parts import Image
from outrider.core.ports import Session, Store


class Door:
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
        self._redact = redact

    async def accept(
        self,
        session: Session,
        text: str,
        *,
        images: Sequence[Image] = (),
        key: str | None = None,
        address: str = "",
    ) -> tuple[Entry, bool]:
        """The input's entry, and whether it is new. Raises Refused with words for the person."""
        self._check(text, images)
        point("J1")
        body = Input(self._redact(text), "person", tuple(images), session.person, address)
        entry, is_new = await self._store.accept(session.id, body, key, self._queue)
        point("J2")
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
