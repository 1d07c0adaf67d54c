"""A real child process that speaks JSON-RPC, in the folder of a test, by which everything it leaves behind is found."""

import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec

from outrider.runtimes.jsonrpc.connection import (
    ConnectionOptions,
    RpcConnection,
    RpcNotification,
    RpcRequest,
    open_connection,
)
from outrider.runtimes.jsonrpc.process import Child, Program, open_child

SCRIPT = Path(__file__).with_name("rpc_child.py")
_TIMEOUT = 60.0


def child_program(folder: Path, *words: str, **more: Any) -> Program:
    """The script, in this folder, with these arguments."""
    return Program((sys.executable, "-I", "-S", str(SCRIPT), *words), folder, {"LANG": "C.UTF-8"}, **more)


@asynccontextmanager
async def connected(
    program: Program, options: ConnectionOptions | None = None
) -> AsyncGenerator[tuple[Child, RpcConnection]]:
    """The child and a connection to it; everything in the block is bounded."""
    with anyio.fail_after(_TIMEOUT):
        async with open_child(program) as child, open_connection(child, options) as connection:
            yield child, connection


async def request(connection: RpcConnection, method: str, params: Any = None) -> Any:
    """The decoded result."""
    return msgspec.json.decode(await connection.request(method, params))


async def next_message(connection: RpcConnection) -> tuple[Any, ...]:
    """The next message as plain values: its id if it has one, its method, its params."""
    match await connection.next_message():
        case RpcRequest(id=number, method=method, params=params):
            return number, method, msgspec.json.decode(params)
        case RpcNotification(method=method, params=params):
            return method, msgspec.json.decode(params)


async def _own(folder: Path, marker: str) -> None:
    """Start a stubborn child that starts others, say so, and wait to be killed."""
    async with connected(child_program(folder, "stubborn", marker=marker)) as (_, connection):
        for kind in ("plain", "session", "session"):
            await connection.request("spawn", kind)
        print("ready", flush=True)
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(_own, Path(sys.argv[1]), sys.argv[2])
