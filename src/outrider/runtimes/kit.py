"""What every runtime is opened with. An entry point `outrider.runtimes` names a function `open_runtime(kit)`."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from msgspec import Struct

from outrider.config.load import Config
from outrider.core.plan import Bounds
from outrider.core.ports import Blobs, Models, Runtime, ToolEnvironment, Tools


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
