"""A process that speaks JSON-RPC in lines and does badly what it is told to. Started by `tests.support.rpc`."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NoReturn

held: list[int] = []
"""Requests whose answer was told to wait."""


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
    """A process that does not care for SIGTERM and sleeps for ever; it keeps our pipes open."""
    script = "trap '' TERM HUP; echo ready >&3; while :; do sleep 1000; done"
    ready, told = os.pipe()
    os.set_inheritable(told, True)
    plain = subprocess.Popen(
        ("/bin/sh", "-c", script.replace("3", str(told))),
        stdin=subprocess.DEVNULL,
        env={} if "scrubbed" in kind else None,
        start_new_session="session" in kind,
        pass_fds=(told,),
    )
    os.close(told)
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
    """By a signal below zero, else with this status; in the middle of a line, with a last word on stderr."""
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
"""By name what is done before the answer, which is what it returns."""


def deal(message: dict[str, Any]) -> None:
    number, method, params = message.get("id"), message.get("method"), message.get("params")
    if method is None:
        say({"method": "answered", "params": message})
    elif number is None:
        say({"method": "heard", "params": message})
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
        answer(number, ACTS.get(method, lambda given: given)(params))
        if method == "twice":
            answer(number, "again")
        after(method)


def after(method: str) -> None:
    """What follows on the answer."""
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
