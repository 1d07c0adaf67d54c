"""Finds implementations by name. Built-ins and third-party plugins register through the same entry points."""

from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import Any

from outrider.core.errors import Refused


def names(group: str) -> Sequence[str]:
    """What is registered under `outrider.<group>`."""
    return sorted({point.name for point in entry_points(group=f"outrider.{group}")})


def load(group: str, name: str) -> Any:
    """The object registered under this name, imported now. Raises Refused with what there is."""
    found = list(entry_points(group=f"outrider.{group}", name=name))
    if not found:
        known = ", ".join(names(group)) or "none"
        raise Refused(f"no {group.rstrip('s')} is called {name!r}; there are: {known}")
    return found[0].load()


def origin(group: str, name: str) -> str:
    """Which package registered this, and its version; empty when that is not known."""
    found = list(entry_points(group=f"outrider.{group}", name=name))
    dist = found[0].dist if found else None
    return f"{dist.name} {dist.version}" if dist else ""
