"""Entry points by name: built-in implementations and third-party plugins are registered in the same way.

The installed packages are scanned when the first plugin is needed, and again only after `sys.path` has changed.
"""

import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from outrider.core.errors import Refused

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints


def names(group: str) -> Sequence[str]:
    """What is registered under `outrider.<group>`."""
    return sorted({point.name for point in _entry_points(group)})


def load(group: str, name: str) -> Any:
    """Import the object registered under this name. Raises Refused, listing what there is."""
    points = tuple(_entry_points(group).select(name=name))
    if not points:
        raise Refused(f"no {group.rstrip('s')} is named {name!r}; available: {', '.join(names(group)) or 'none'}")
    return points[0].load()


def origin(group: str, name: str) -> str:
    """The package that registered this, and its version; empty when that is not known."""
    points = tuple(_entry_points(group).select(name=name))
    package = points[0].dist if points else None
    return f"{package.name} {package.version}" if package else ""


def _entry_points(group: str) -> "EntryPoints":
    return _scan(tuple(sys.path)).select(group=f"outrider.{group}")


@lru_cache(maxsize=1)
def _scan(path: tuple[str, ...]) -> "EntryPoints":
    """The entry points of the packages on `sys.path`, which is `path`."""
    from importlib.metadata import entry_points  # slow to import, and most commands need no plugin

    return cast("EntryPoints", entry_points())  # of another class in Python 3.11, with the same `select`
