"""Plugins by name. Built-in and third-party implementations register through the same entry points."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from outrider.core.errors import Refused

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints


def names(group: str) -> Sequence[str]:
    """The names registered under `outrider.<group>`."""
    return sorted({point.name for point in _points(group)})


def load(group: str, name: str) -> Any:
    """Import the object registered under this name. Raises Refused with the names there are."""
    points = list(_points(group).select(name=name))
    if not points:
        raise Refused(f"no {group.rstrip('s')} is called {name!r}; there are: {', '.join(names(group)) or 'none'}")
    return points[0].load()


def origin(group: str, name: str) -> str:
    """The package that registered this name, and its version; empty when unknown."""
    points = list(_points(group).select(name=name))
    dist = points[0].dist if points else None
    return f"{dist.name} {dist.version}" if dist else ""


def _points(group: str) -> "EntryPoints":
    from importlib.metadata import entry_points  # Slow to import, and most commands name no plugin.

    return entry_points(group=f"outrider.{group}")
