"""JSON-RPC in lines over the stdin and stdout of a child that we start and end: how agents of others are spoken with.

async with open_child(Program(argv, cwd, environ)) as child, open_peer(child) as peer:
    result = await peer.request("initialize", {"clientInfo": …})
    async for message in peer.messages(): …
"""

from outrider.runtimes.jsonrpc.connection import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    ConnectionOptions,
    RequestId,
    RpcConnection,
    RpcMessage,
    RpcNotification,
    RpcRequest,
    open_connection,
)
from outrider.runtimes.jsonrpc.errors import ProcessExited, RequestTimeout, RpcError
from outrider.runtimes.jsonrpc.process import Child, Program, open_child
from outrider.system.processes import MARKER_VARIABLE, new_marker, terminate_marked

__all__ = [
    "INTERNAL_ERROR",
    "INVALID_PARAMS",
    "MARKER_VARIABLE",
    "METHOD_NOT_FOUND",
    "Child",
    "ConnectionOptions",
    "ProcessExited",
    "Program",
    "RequestId",
    "RequestTimeout",
    "RpcConnection",
    "RpcError",
    "RpcMessage",
    "RpcNotification",
    "RpcRequest",
    "new_marker",
    "open_child",
    "open_connection",
    "terminate_marked",
]
