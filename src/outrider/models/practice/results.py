"""Reads what the file tools answered: listings, pages of files, matches. Their words are material, never orders.

An answer of another shape is not read as anything: not every wire says which results are failures.
"""

import re

from msgspec import Struct

_HEADER = re.compile(r".*: lines (?P<first>[\d,]+)–(?P<last>[\d,]+) of (?P<total>[\d,]+|more)(?:, .*)?")
_FOOTER = re.compile(r"\[… go on with offset=\d+ …\]")
_NOTE = re.compile(r"\[.*\]")
_ROW = re.compile(r"(?P<path>.+?):\d+: .*")
_SIZED = re.compile(r"(?P<path>.+?)  (?:[\d.,]+ \w+|\(.+\))")
_ABBREVIATED = re.compile(r"(?:\b(?:e\.g|i\.e|etc|vs|cf)\.)$")


class Page(Struct, frozen=True):
    """Some lines of a file."""

    lines: list[str]
    first: int = 1
    total: int | None = 0
    """Lines of the whole file; None when that is not known."""

    @property
    def is_whole(self) -> bool:
        return self.first == 1 and self.total == len(self.lines)


def parse_page(path: str, text: str) -> Page | None:
    lines = text.split("\n")
    if text.strip() == f"{path} is empty":
        return Page([])
    header = _HEADER.fullmatch(lines[0])
    if not header:
        return None
    body = lines[1:-1] if _FOOTER.fullmatch(lines[-1]) else lines[1:]
    return Page(body, _number(header["first"]), None if header["total"] == "more" else _number(header["total"]))


def _number(text: str) -> int:
    return int(text.replace(",", ""))


class Names(Struct, frozen=True):
    """What is in a folder."""

    files: list[str]
    folders: list[str]
    notes: list[str]


def parse_listing(path: str, text: str) -> Names | None:
    names = Names([], [], [])
    if text.strip() == f"{path} is empty":
        return names
    for line in filter(None, map(str.strip, text.split("\n"))):
        if _NOTE.fullmatch(line):
            names.notes.append(line)
        elif line.endswith("/"):
            names.folders.append(line.rstrip("/"))
        elif row := _SIZED.fullmatch(line):
            names.files.append(row["path"])
        else:
            return None
    return names


class Matches(Struct, frozen=True):
    rows: list[str]
    files: list[str]
    notes: list[str]


def parse_matches(text: str) -> Matches | None:
    rows = [line for line in text.split("\n") if _ROW.fullmatch(line)]
    files = dict.fromkeys(match["path"] for row in rows if (match := _ROW.fullmatch(row)))
    notes = [line for line in text.split("\n") if _NOTE.fullmatch(line)]
    return Matches(rows, list(files), notes) if rows or text.startswith("no match") else None


_HEADING = re.compile(r"#{1,6}\s+(?P<title>.+?)\s*#*")
_DEFINED = re.compile(r"(?:export\s+|pub\s+|async\s+)*(?:def|class|function|fn|func|struct|interface|type)\s+(\w+).*")


def summary(page: Page) -> list[str]:
    """Headings with the first sentence below each, else first sentences; and what code defines. All of it quoted."""
    points: list[str] = []
    paragraph: list[str] = []
    wants_sentence, is_code = True, False
    for line in [*page.lines, ""]:
        if line.startswith("```"):
            is_code = not is_code
            continue
        if is_code:
            continue
        heading = _HEADING.fullmatch(line)
        if line.strip() and not heading:
            paragraph.append(line.strip())
            continue
        if paragraph and wants_sentence:
            points.append(_sentence(" ".join(paragraph)))
            wants_sentence = False
        paragraph = []
        if heading:
            points.append(f"**{heading['title']}**")
            wants_sentence = True
    defined = [match[1] for line in page.lines if (match := _DEFINED.fullmatch(line))]
    return [*points[:24], *([f"Defines: {', '.join(f'`{name}`' for name in defined[:30])}"] if defined else [])]


def _sentence(text: str, longest: int = 240) -> str:
    for end in re.finditer(r"[.!?](?=\s|$)", text):
        sentence = text[: end.end()]
        if not _ABBREVIATED.search(sentence):
            return sentence if len(sentence) <= longest else sentence[:longest] + " …"
    return text if len(text) <= longest else text[:longest] + " …"
