"""Before a home is joined or owned: what an owner says of itself, and how long one waits for an owner to answer."""

import os
import time
from pathlib import Path

import anyio

from outrider import __version__
from outrider.app.acting import default_model_name
from outrider.app.presence import OpenMode
from outrider.channels.link.wire import OwnerInfo
from outrider.config.choose import choose_models
from outrider.config.load import Config
from outrider.core.errors import HomeBusy, Refused
from outrider.store.lock import LockHolder, last_holder

POLL_INTERVAL = 0.02
_ACCEPT_TIMEOUT = 10.0
"""Seconds that an owner may take to listen, or to answer."""


class OwnerWait:
    """How long a home may be held by somebody who does not answer."""

    def __init__(self, home: Path, wait: float, listening: float = _ACCEPT_TIMEOUT) -> None:
        self._home = home
        self._limits = (wait, listening)
        self._holder = LockHolder()
        self._since = 0.0

    async def wait_or_raise(self, busy: HomeBusy) -> None:
        """Wait a moment, or raise this when the same holder has been waited for long enough."""
        holder = last_holder(self._home)
        if holder != self._holder:
            self._holder, self._since = holder, time.monotonic()
        if time.monotonic() - self._since >= (self._limits[1] if holder.accepts_clients else self._limits[0]):
            raise busy
        await anyio.sleep(POLL_INTERVAL)


def owner_info(config: Config, presence: OpenMode) -> OwnerInfo:
    """What an owner says of itself."""
    model = default_model_name(config)
    return OwnerInfo(presence.label, os.getpid(), __version__, model, config.runtime.name, model_fingerprint(config))


def process_label() -> str:
    """What this process is called when it asks for a home that it is a guest in."""
    return f"process {os.getpid()}"


def model_fingerprint(config: Config) -> str:
    """What these settings let a process ask, and where; the same text for the same means."""
    try:
        models = [f"{choice.name} at {choice.url}, key {bool(choice.key)}" for choice in choose_models(config)]
    except Refused:
        models = ["none"]
    return "; ".join((config.runtime.name, *models))
