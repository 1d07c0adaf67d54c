"""Writes docs/promises.md from docs/promises.toml and the marks in the tests: `./dev docs`."""

import tomllib
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec
from msgspec import Struct

from tests.shape.repository import ROOT, Mark, marks

PAGE = ROOT / "docs" / "promises.md"
SOURCE = ROOT / "docs" / "promises.toml"


class Promise(Struct, frozen=True, forbid_unknown_fields=True):
    """One promise: a law of reliability, or a guard of the security posture."""

    id: str
    name: str
    promise: str
    state: Literal["kept", "planned"]
    measure: str = ""


class KillPoint(Struct, frozen=True, forbid_unknown_fields=True):
    id: str
    when: str


class Promises(Struct, frozen=True, forbid_unknown_fields=True):
    promise: list[Promise]
    guard: list[Promise]
    kill: list[KillPoint]

    def all(self) -> list[Promise]:
        return [*self.promise, *self.guard]


def read() -> Promises:
    return msgspec.convert(tomllib.loads(SOURCE.read_text(encoding="utf-8")), Promises)


def render(source: Promises) -> str:
    """The page. The tests that show a promise are named by file, so that the page changes rarely."""
    test_marks = marks("promise")
    laws = _table(
        "| | promise | shown by | state |\n|---|---|---|---|",
        (
            f"| {law.id} | **{law.name}** — {law.promise} | {law.measure} | {_state(law, test_marks)} |"
            for law in source.promise
        ),
    )
    guards = _table(
        "| | protection | what it does | state |\n|---|---|---|---|",
        (f"| {guard.id} | {guard.name} | {guard.promise} | {_state(guard, test_marks)} |" for guard in source.guard),
    )
    kills = _table("| | killed when |\n|---|---|", (f"| {kill.id} | {kill.when} |" for kill in source.kill))
    return f"""<!-- Written by `./dev docs` from promises.toml and the tests. Change those, not this page. -->
# What Outrider promises

A promise is *kept* when a test shows it, measured from outside: by what a person, a file or a scripted provider saw,
never by reading Outrider's own database. The tests are listed beside it. *Planned* means that it is not shown yet: do
not rely on it.

## Reliability

{laws}

## Security

[SECURITY.md](../SECURITY.md) says what protects you today.

{guards}

## Where the process is killed

The tests in `tests/fault` kill a real process with SIGKILL at these points and then count what the outside world saw.
`OUTRIDER_FAIL=mid_reply` kills the first time the point is reached, `OUTRIDER_FAIL=mid_reply:3` the third time. A point
marked as planned is not in the code yet.

{kills}
"""


def _table(head: str, rows: Iterable[str]) -> str:
    return "\n".join([head, *rows])


def _state(promise: Promise, test_marks: Sequence[Mark]) -> str:
    if promise.state == "planned":
        return "planned"
    files = sorted({mark.file for mark in test_marks if mark.id == promise.id})
    return "kept: " + ", ".join(f"[{file.rpartition('/')[2]}](../{file})" for file in files)


if __name__ == "__main__":
    PAGE.write_text(render(read()), encoding="utf-8")
