"""Before a home is joined or owned: what an owner says of itself, and how long one waits for an owner to answer."""

import os
import time
from pathlib import Path

import anyio

from outrider import __version__
from outrider.app.acting import default_model
from outrider.app.presence import Presence
from outrider.channels.link.wire import Hello
from outrider.config.choose import choose
from outrider.config.load import Config
from outrider.core.errors import HomeBusy, Refused
from outrider.store.lock import Holder, last_holder

POLL = 0.02
_LISTENING = 10.0
"""Seconds that an owner may take to listen, or to answer."""


class Waiting:
    """How long a home may be held by somebody who does not answer."""

    def __init__(self, home: Path, wait: float, listening: float = _LISTENING) -> None:
        self._home = home
        self._patience = (wait, listening)
        self._holder = Holder()
        self._since = 0.0

    async def bear(self, busy: HomeBusy) -> None:
        """Wait a moment, or raise this when the same holder has been waited for long enough."""
        holder = last_holder(self._home)
        if holder != self._holder:
            self._holder, self._since = holder, time.monotonic()
        if time.monotonic() - self._since >= (self._patience[1] if holder.listens else self._patience[0]):
            raise busy
        await anyio.sleep(POLL)


def hello(config: Config, presence: Presence) -> Hello:
    """What an owner says of itself."""
    model = default_model(config)
    return Hello(presence.label, os.getpid(), __version__, model, config.runtime.name, means(config))


def myself() -> str:
    """What this process is called when it asks for a home that it is a guest in."""
    return f"process {os.getpid()}"


def means(config: Config) -> str:
    """What these settings let a process ask, and where; the same text for the same means."""
    try:
        models = [f"{choice.name} at {choice.url}, key {bool(choice.key)}" for choice in choose(config)]
    except Refused:
        models = ["none"]
    return "; ".join((config.runtime.name, *models))
