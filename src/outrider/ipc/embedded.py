"""A home inside a Python program: `outrider.open` and `outrider.open_blocking`.

The program owns the home. Commands beside it may look things up and kill tasks. What runs a turn is refused, because
the program's tools and model are its own.
"""

from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

from anyio.from_thread import start_blocking_portal

from outrider.app.agent import Agent
from outrider.app.api import OpenMode
from outrider.app.open import open_agent
from outrider.app.sync import BlockingAgent
from outrider.config.load import load
from outrider.config.schema import Config
from outrider.core.ports import Model, Tool
from outrider.ipc.protocol import owner_info
from outrider.ipc.server import OwnerServer, serve_home
from outrider.system.lock import lock_home
from outrider.tools.define import ToolFunction


@asynccontextmanager
async def open_embedded(
    home: str | Path | None = None,
    *,
    model: str | Model | None = None,
    tools: Sequence[Tool | ToolFunction] = (),
    workspace: str | Path | None = None,
    config: Config | None = None,
) -> AsyncGenerator[Agent]:
    """Open a home and run its worker until the block ends. Turns that are open then resume at the next opening.

    `model` is a name as in `OUTRIDER_MODEL`, or a model object. `workspace` is the folder of new sessions; without one,
    each gets a folder of its own. `config` replaces the settings that would be loaded. Raises HomeBusy when another
    process has used the home for two seconds.
    """
    name, folder = model if isinstance(model, str) else "", _folder(workspace)
    config = config or load(Path(home) if home else None, overrides={"model.name": name} if name else {})
    async with AsyncExitStack() as stack:
        mode = OpenMode()
        lock = await stack.enter_async_context(lock_home(config.home, mode.label, mode.wait, serves="read"))
        agent = await stack.enter_async_context(
            open_agent(
                config,
                lock,
                mode,
                model=None if isinstance(model, str) else model,
                tools=tools,
                workspace=folder,
            )
        )
        server = OwnerServer(agent, owner_info(config, mode.label, "read"))
        await stack.enter_async_context(serve_home(config.home, server))
        yield agent


def _folder(path: str | Path | None) -> Path | None:
    return Path(path).expanduser().resolve() if path else None


@contextmanager
def open_blocking(
    home: str | Path | None = None,
    *,
    model: str | Model | None = None,
    tools: Sequence[Tool | ToolFunction] = (),
    workspace: str | Path | None = None,
) -> Generator[BlockingAgent]:
    """`outrider.open` for programs without an event loop."""
    opening = open_embedded(home, model=model, tools=tools, workspace=workspace)
    with start_blocking_portal("asyncio") as portal, portal.wrap_async_context_manager(opening) as agent:
        yield BlockingAgent(agent, portal)
