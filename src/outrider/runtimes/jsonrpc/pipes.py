"""Reading and writing the pipes of a child without ever blocking anybody else."""

import os

import anyio
import anyio.lowlevel

PIPE_SIZE = 1024 * 1024
"""The most that a pipe holds, whoever enlarged it."""
_CHUNK = 256 * 1024


async def read_some(descriptor: int) -> bytes:
    """What there is, once there is something; empty at the end."""
    await anyio.lowlevel.checkpoint()
    while True:
        try:
            return os.read(descriptor, _CHUNK)
        except BlockingIOError:
            await anyio.wait_readable(descriptor)


def read_nowait(descriptor: int, most: int) -> bytes:
    """What there is at this moment, up to about this much."""
    found = bytearray()
    while len(found) < most:
        try:
            chunk = os.read(descriptor, _CHUNK)
        except BlockingIOError:
            break
        if not chunk:
            break
        found += chunk
    return bytes(found)


async def write_all(descriptor: int, content: bytes, stall: float) -> None:
    """Raises TimeoutError when nothing is taken for `stall` seconds, BrokenPipeError when nobody reads any more."""
    rest = memoryview(content)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:
            with anyio.fail_after(stall):
                await anyio.wait_writable(descriptor)
