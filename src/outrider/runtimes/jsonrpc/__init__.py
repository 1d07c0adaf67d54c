"""JSON-RPC in lines over the stdin and stdout of a child that we start and end: how agents of others are spoken with.

async with open_child(Program(argv, cwd, environ)) as child, open_peer(child) as peer:
    result = await peer.request("initialize", {"clientInfo": …})
    async for message in peer.messages(): …
"""

from outrider.runtimes.jsonrpc.child import Child, open_child
from outrider.runtimes.jsonrpc.errors import ProcessExited, RequestTimeout, RpcError
from outrider.runtimes.jsonrpc.orphans import MARKER_VARIABLE, new_marker, terminate_marked
from outrider.runtimes.jsonrpc.peer import ConnectionOptions, RpcConnection, open_connection
from outrider.runtimes.jsonrpc.start import Program
from outrider.runtimes.jsonrpc.wire import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    RequestId,
    RpcMessage,
    RpcNotification,
    RpcRequest,
)

__all__ = [
    "INTERNAL_ERROR",
    "INVALID_PARAMS",
    "METHOD_NOT_FOUND",
    "MARKER_VARIABLE",
    "Child",
    "ProcessExited",
    "RequestId",
    "RpcMessage",
    "RequestTimeout",
    "RpcNotification",
    "RpcConnection",
    "ConnectionOptions",
    "Program",
    "RpcRequest",
    "RpcError",
    "terminate_marked",
    "new_marker",
    "open_child",
    "open_connection",
]
