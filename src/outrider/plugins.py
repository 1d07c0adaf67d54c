"""Finds implementations by name. Built-ins and third-party plugins register through the same entry points."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from outrider.core.errors import Refused

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints


def names(group: str) -> Sequence[str]:
    """What is registered under `outrider.<group>`."""
    return sorted({point.name for point in _points(group)})


def load(group: str, name: str) -> Any:
    """The object registered under this name, imported now. Raises Refused with what there is."""
    found = list(_points(group).select(name=name))
    if not found:
        known = ", ".join(names(group)) or "none"
        raise Refused(f"no {group.rstrip('s')} is called {name!r}; there are: {known}")
    return found[0].load()


def origin(group: str, name: str) -> str:
    """Which package registered this, and its version; empty when that is not known."""
    found = list(_points(group).select(name=name))
    dist = found[0].dist if found else None
    return f"{dist.name} {dist.version}" if dist else ""


def _points(group: str) -> "EntryPoints":
    from importlib.metadata import entry_points  # Slow to import, and most commands name no plugin.

    return entry_points(group=f"outrider.{group}")
