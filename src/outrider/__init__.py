"""Outrider: a self-hosted agent that finishes what it starts."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outrider.app.agent import Agent
    from outrider.core.errors import Refused, Unavailable
    from outrider.core.events import Delta, Entry
    from outrider.core.turn_result import TurnResult
    from outrider.ipc.embedded import open_blocking
    from outrider.ipc.embedded import open_embedded as open
    from outrider.tools.define import tool

__version__ = "0.1.0"
__all__ = ["Agent", "Delta", "Entry", "Refused", "TurnResult", "Unavailable", "open", "open_blocking", "tool"]

_EXPORTS = {
    "Agent": ("outrider.app.agent", "Agent"),
    "Delta": ("outrider.core.events", "Delta"),
    "Entry": ("outrider.core.events", "Entry"),
    "TurnResult": ("outrider.core.turn_result", "TurnResult"),
    "Refused": ("outrider.core.errors", "Refused"),
    "Unavailable": ("outrider.core.errors", "Unavailable"),
    "open": ("outrider.ipc.embedded", "open_embedded"),
    "open_blocking": ("outrider.ipc.embedded", "open_blocking"),
    "tool": ("outrider.tools.define", "tool"),
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that `import outrider` and `outrider --version` stay fast."""
    if name not in _EXPORTS:
        raise AttributeError(f"module 'outrider' has no attribute {name!r}")
    from importlib import import_module

    module, attribute = _EXPORTS[name]
    return getattr(import_module(module), attribute)
