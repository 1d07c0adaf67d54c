"""A child process that opens a store and prints what was acknowledged as durable. The tests kill it.

`store_child.py HOME write` appends to several sessions at once, forever; `store_child.py HOME hold` opens the home and
holds it until stdin closes.
"""

import os
import sys
from pathlib import Path

import anyio

from outrider.core.events import Result
from outrider.core.store_port import Store
from outrider.store.sqlite import open_store

WRITERS = 8


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


async def write(store: Store, name: str) -> None:
    session = await store.create("ann", name, "/folder")
    claim = await store.claim(session.id)
    while True:
        entry = await store.append(session.id, Result("c", os.urandom(200).hex()), claim.generation)
        if entry:
            say(session.id, entry.seq)


async def main(home: Path, action: str) -> None:
    async with open_store(home, label="outrider child") as store:
        say("ready")
        if action == "hold":
            await anyio.to_thread.run_sync(sys.stdin.read)
            return
        async with anyio.create_task_group() as group:
            for number in range(WRITERS):
                group.start_soon(write, store, f"s{number}")


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]), sys.argv[2])
