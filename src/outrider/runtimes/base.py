"""Runtime entry points: what a runtime is opened with, and how it is probed before use.

The entry point group `outrider.runtimes` names functions `open_runtime(context)`; `outrider.runtime_checks` names a
`RuntimeProbe` under the name of its runtime.
"""

import os
import shutil
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Literal, TypeVar

import msgspec
from msgspec import Struct

from outrider.config.schema import Config
from outrider.core.errors import NeedsAnotherProcess, Refused, Unavailable
from outrider.core.plan import Bounds
from outrider.core.ports import Models, Runtime, SessionBindings, ToolEnvironment, Tools
from outrider.core.store_port import Blobs
from outrider.core.text import clip
from outrider.runtimes.jsonrpc.errors import RpcError


class RuntimeContext(Struct, frozen=True):
    """The parts of a home that runtimes use."""

    config: Config
    models: Models
    """For the native runtime only."""
    tools: Tools
    tool_environment: ToolEnvironment
    bounds: Bounds
    blobs: Blobs
    bindings: SessionBindings


OpenRuntime = Callable[[RuntimeContext], AbstractAsyncContextManager[Runtime]]
"""Opens a runtime for the life of a home. Raises Refused when it cannot be used on this machine."""
ProbeVerdict = Literal["fine", "odd", "broken"]
MAX_PROBE_TEXT = 400
"""Characters of another program's text in the result of a check."""


class ProbeResult(Struct, frozen=True):
    name: str
    """What was checked. Of runtimes: `program`, `version`, `start`, `login`."""
    verdict: ProbeVerdict
    text: str
    advice: str = ""


class RuntimeProbe(Struct, frozen=True):
    """What can be found out about a runtime before it runs a turn."""

    locate: Callable[[Config], str]
    """The path of its program. Starts nothing. Raises Refused with how to install it."""
    checks: Callable[[Config], AsyncGenerator[ProbeResult, None]]
    """Tries it step by step, and ends what it started. Raises nothing. Nothing follows a broken step."""
    takes_client_tools: bool = False
    """As in its traits: whether the client that sends an input may bring tools of its own."""
    steers: bool = False
    """As in its traits: whether a message in the middle of a turn reaches that turn."""
    quick_checks: Callable[[Config], AsyncGenerator[ProbeResult, None]] | None = None
    """The checks without those that leave a trace in the runtime; None when none of them does."""


P = TypeVar("P")
ProbeSteps = Mapping[str, Callable[[P], Awaitable[ProbeResult]]]
"""Checks of a running process by the name of their result, in their order."""


async def probe_process(
    process: AbstractAsyncContextManager[P], steps: ProbeSteps[P], explain: Callable[[Exception], tuple[str, str]]
) -> list[ProbeResult]:
    """Start a process, check it step by step until one is broken, and end it.

    `explain` turns the error of a step, or of the start, into a text and an advice.
    """
    results: list[ProbeResult] = []
    step = "start"
    try:
        async with process as running:
            for name, check in steps.items():
                step = name
                results.append(await check(running))
                if results[-1].verdict == "broken":
                    break
    except (Refused, Unavailable, RpcError, msgspec.DecodeError) as error:
        text, advice = explain(error)
        results.append(ProbeResult(step, "broken", clip(text, MAX_PROBE_TEXT), advice))
    return results


def find_program(name: str, search_path: str) -> str:
    """The executable of this name in these folders, or at this path. Raises NeedsAnotherProcess with what is wrong."""
    if program := shutil.which(name, path=search_path):
        return program
    is_path = os.sep in name
    folders = [folder for folder in search_path.split(os.pathsep) if folder]
    for path in [Path(name)] if is_path else [Path(folder, name) for folder in folders]:
        if path.is_file():
            raise NeedsAnotherProcess(f"{path} is not executable: chmod +x {path}")
        if is_path and path.is_dir():
            raise NeedsAnotherProcess(f"{path} is a folder, not a program")
    raise NeedsAnotherProcess(f"there is no program {name}")
