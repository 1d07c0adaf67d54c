"""The table of docs/runtimes.md: what each program can do, as the last run of `./dev runtimes` found it.

The results are in docs/runtimes.json, one for each program; the page is written from them.
"""

import msgspec
from msgspec import Struct

from tests.contract.programs import PROGRAMS
from tests.contract.runtimes import ABILITIES
from tests.shape.repository import ROOT

PAGE = ROOT / "docs" / "runtimes.md"
RESULTS = ROOT / "docs" / "runtimes.json"
BEGIN_MARK = "<!-- Written by `./dev runtimes`. Do not edit. -->"
END_MARK = "<!-- End of what `./dev runtimes` writes. -->"
TITLES = {"native": "Outrider's own loop", **{name: program.title for name, program in PROGRAMS.items()}}
"""The rows, in their order."""


class ProgramResult(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a run found out about one program."""

    day: str
    version: str = ""
    needs: str = ""
    """What has to be installed for it, e.g. a version of Node."""
    abilities: dict[str, bool] = {}
    remarks: dict[str, str] = {}
    """Why it lacks an ability, or what to know about one."""
    untried: str = ""
    """Why it could not be tried."""


def read() -> dict[str, ProgramResult]:
    return msgspec.json.decode(RESULTS.read_bytes(), type=dict[str, ProgramResult]) if RESULTS.exists() else {}


def write(results: dict[str, ProgramResult]) -> None:
    """Save the results and write the page."""
    ordered = {name: results[name] for name in TITLES if name in results}
    RESULTS.write_bytes(msgspec.json.format(msgspec.json.encode(ordered), indent=2) + b"\n")
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN_MARK)
    _, _, after = rest.partition(END_MARK)
    PAGE.write_text(f"{before}{render(ordered)}{after}", encoding="utf-8")


def render(results: dict[str, ProgramResult]) -> str:
    """The part of the page between the marks, with them."""
    notes: list[str] = []

    def note(text: str) -> str:
        if text not in notes:
            notes.append(text)
        return f" ({notes.index(text) + 1})"

    def cell(result: ProgramResult, ability: str) -> str:
        remark = result.remarks.get(ability, "")
        return ("yes" if result.abilities[ability] else "no") + (note(remark) if remark else "")

    heads = ["program", "version", "tried on", "needs", *ABILITIES.values()]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for name, title in TITLES.items():
        result = results.get(name)
        if result is None or result.untried:
            reason = note(result.untried) if result else ""
            cells = [title, "", f"not tried{reason}", "", *([""] * len(ABILITIES))]
        else:
            cells = [title, result.version, result.day, result.needs, *(cell(result, one) for one in ABILITIES)]
        lines.append(f"| {' | '.join(cells)} |")
    footnotes = [f"{n}. {text[:1].upper()}{text[1:]}." for n, text in enumerate(notes, 1)]
    return "\n".join([BEGIN_MARK, *lines, "", *footnotes, *([""] if footnotes else []), END_MARK])
