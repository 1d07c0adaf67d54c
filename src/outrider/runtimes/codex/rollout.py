"""How the model called something, from what Codex keeps of a thread: one taken up again tells it nowhere else."""

import logging
import os
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec
from msgspec import Struct

from outrider.runtimes.codex.wire import RawItem

_ROLLOUT_TAIL = 1 << 20
_ROLLOUT_TRIES = 10
_ROLLOUT_PAUSE = 0.1
log = logging.getLogger("outrider.codex")


class _RolloutLine(Struct):
    type: str = ""
    payload: RawItem | None = None


async def find_rollout_call(path: str, call: str) -> RawItem | None:
    """The call of this id, among the newest; None when it is not found within a second."""
    for _ in range(_ROLLOUT_TRIES if path else 0):
        if found := await anyio.to_thread.run_sync(_search_rollout, path, call):
            return found
        await anyio.sleep(_ROLLOUT_PAUSE)
    return None


def _search_rollout(path: str, call: str) -> RawItem | None:
    try:
        with Path(path).open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _ROLLOUT_TAIL))
            lines = file.read().split(b"\n")
    except OSError as error:
        log.info("what Codex keeps of its thread cannot be read: %s", error)
        return None
    for line in reversed(lines):
        if call.encode() in line:
            try:
                found = msgspec.json.decode(line, type=_RolloutLine).payload
            except msgspec.DecodeError:
                continue
            if found and found.call_id == call and found.type == "function_call":
                return found
    return None
