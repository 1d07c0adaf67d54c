"""A child process that speaks JSON-RPC and misbehaves on request. Started by `tests.support.rpc`."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NoReturn

held: list[int] = []
"""Requests whose response waits for `release`."""


def put(content: bytes) -> None:
    while content:
        content = content[os.write(1, content) :]


def say(message: dict[str, Any]) -> None:
    put(json.dumps(message).encode() + b"\n")


def answer(number: int, result: Any = None) -> None:
    say({"id": number, "result": result})


def facts() -> dict[str, Any]:
    own = {"pid": os.getpid(), "session": os.getsid(0), "group": os.getpgrp()}
    return {"argv": sys.argv, "cwd": os.getcwd(), "environ": dict(os.environ), **own}


def spawn(kind: str) -> int:
    """A process that ignores SIGTERM, sleeps forever and holds our pipes open."""
    script = "trap '' TERM HUP; echo ready >&3; while :; do sleep 1000; done"
    ready, writer = os.pipe()
    os.set_inheritable(writer, True)
    plain = subprocess.Popen(
        ("/bin/sh", "-c", script.replace("3", str(writer))),
        stdin=subprocess.DEVNULL,
        env={} if "scrubbed" in kind else None,
        start_new_session="session" in kind,
        pass_fds=(writer,),
    )
    os.close(writer)
    os.read(ready, 1)
    os.close(ready)
    return plain.pid


def for_ever() -> NoReturn:
    while True:
        signal.pause()


def until_told() -> None:
    """Read nothing before SIGUSR1."""
    signal.sigwait({signal.SIGUSR1})


def die(how: int) -> None:
    """Exit with this status, or by a signal when it is negative; in the middle of a line, with a text on stderr."""
    put(b'{"method":"note","params":"la')
    os.write(2, b"goodbye")
    if how < 0:
        os.kill(os.getpid(), -how)
    os._exit(how)


def flood(count: int, size: int) -> None:
    for number in range(count):
        say({"method": "note", "params": [number, "x" * size]})


def stutter(text: str) -> None:
    for byte in text.encode():
        put(bytes([byte]))


ACTS: dict[str, Callable[[Any], Any]] = {
    "facts": lambda _: facts(),
    "write": lambda text: put(text.encode("latin-1")),
    "stutter": stutter,
    "big": lambda size: "x" * size,
    "scold": lambda size: os.write(2, b"x" * size),
    "flood": lambda sizes: flood(*sizes),
    "spawn": spawn,
    "die": die,
}
"""What is done before the response, by method; the return value is the result."""


def deal(message: dict[str, Any]) -> None:
    number, method, params = message.get("id"), message.get("method"), message.get("params")
    if method is None:
        say({"method": "answered", "params": message})
    elif number is None:
        say({"method": "received", "params": message})
    elif method == "hold":
        held.append(number)
    elif method == "release":
        for waiting in held:
            answer(waiting, "late")
        held.clear()
        answer(number, "released")
    elif method == "fail":
        say({"id": number, "error": params})
    else:
        answer(number, ACTS.get(method, lambda params: params)(params))
        if method == "twice":
            answer(number, "again")
        after(method)


def after(method: str) -> None:
    """What follows the response."""
    if method == "deaf":
        for_ever()
    if method == "nap":
        until_told()
    if method == "mute":
        os.close(1)
        for_ever()


def main() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    stubborn = "stubborn" in sys.argv
    if stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for line in sys.stdin.buffer:
        deal(json.loads(line))
    if stubborn:
        for_ever()


if __name__ == "__main__":
    main()
