"""JSON-RPC in lines over the stdin and stdout of a child that we start and end: how agents of others are spoken with.

async with open_child(Program(argv, cwd, environ)) as child, open_peer(child) as peer:
    result = await peer.request("initialize", {"clientInfo": …})
    async for message in peer.messages(): …
"""

from outrider.runtimes.jsonrpc.child import Child, open_child
from outrider.runtimes.jsonrpc.errors import ChildGone, NoAnswer, RpcError
from outrider.runtimes.jsonrpc.orphans import VARIABLE, end_marked, new_mark
from outrider.runtimes.jsonrpc.peer import Peer, PeerTraits, open_peer
from outrider.runtimes.jsonrpc.start import Program
from outrider.runtimes.jsonrpc.wire import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    Id,
    Message,
    Notification,
    Request,
)

__all__ = [
    "INTERNAL_ERROR",
    "INVALID_PARAMS",
    "METHOD_NOT_FOUND",
    "VARIABLE",
    "Child",
    "ChildGone",
    "Id",
    "Message",
    "NoAnswer",
    "Notification",
    "Peer",
    "PeerTraits",
    "Program",
    "Request",
    "RpcError",
    "end_marked",
    "new_mark",
    "open_child",
    "open_peer",
]
