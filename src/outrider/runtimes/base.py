"""What every runtime is opened with. An entry point `outrider.runtimes` names a function `open_runtime(kit)`.

How a runtime is looked into: an entry point `outrider.runtime_checks` names an `Examine`, by the runtime's name.

Where a program of somebody else's is, or what is wrong with what stands in its place.
"""

import os
import shutil
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Literal

from msgspec import Struct

from outrider.config.schema import Config
from outrider.core.errors import NeedsAnotherProcess
from outrider.core.plan import Bounds
from outrider.core.ports import Models, Runtime, ToolEnvironment, Tools
from outrider.core.store_port import Blobs


class RuntimeContext(Struct, frozen=True):
    """A home, as runtimes see it."""

    config: Config
    models: Models
    """For our own loop alone."""
    tools: Tools
    tool_environment: ToolEnvironment
    bounds: Bounds
    blobs: Blobs


OpenRuntime = Callable[[RuntimeContext], AbstractAsyncContextManager[Runtime]]
"""Opens a runtime for the life of a home. Raises Refused, in words, when it cannot be used on this machine."""
ProbeVerdict = Literal["fine", "odd", "broken"]


class ProbeResult(Struct, frozen=True):
    """One finding."""

    name: str
    """What was looked at. Of runtimes: `program`, `version`, `start`, `login`."""
    verdict: ProbeVerdict
    text: str
    advice: str = ""


class RuntimeProbe(Struct, frozen=True):
    """What can be found out about a runtime before it carries a turn."""

    locate: Callable[[Config], str]
    """Where its program is. Starts nothing. Raises Refused with how to get it."""
    checks: Callable[[Config], AsyncGenerator[ProbeResult, None]]
    """Really tries it, step by step, and ends what it started. Raises nothing; the first that is broken is the last."""
    takes_client_tools: bool = False
    """As in its traits: whether tools of whoever sent an input can be used in its turns."""
    steers: bool = False
    """As in its traits: whether what is said in the midst of a turn reaches it at once."""
    quick_checks: Callable[[Config], AsyncGenerator[ProbeResult, None]] | None = None
    """As `checks`, for a list of all runtimes, where trying leaves a trace in it; None where it leaves none."""


def find_program(named: str, path: str) -> str:
    """The program of this name in these folders, or at this path. Raises NotHere with what is wrong."""
    if found := shutil.which(named, path=path):
        return found
    is_path = os.sep in named
    places = [Path(named)] if is_path else [Path(folder, named) for folder in path.split(os.pathsep) if folder]
    for place in places:
        if place.is_file():
            raise NeedsAnotherProcess(f"{place} is not executable: chmod +x {place}")
        if is_path and place.is_dir():
            raise NeedsAnotherProcess(f"{place} is a folder, not a program")
    raise NeedsAnotherProcess(f"there is no program {named}")
