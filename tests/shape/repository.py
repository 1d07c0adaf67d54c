"""The repository as text: what the shape tests look at. Nothing of Outrider is imported to find it."""

import ast
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src" / "outrider"
TESTS = ROOT / "tests"
CODE = [SRC, TESTS, ROOT / "bench"]

Function = ast.FunctionDef | ast.AsyncFunctionDef


def name_of(path: Path) -> str:
    """As people write it: from the root."""
    return path.relative_to(ROOT).as_posix()


def tracked() -> list[Path]:
    """Every file that is, or is about to be, under version control; without git, every file that is not generated."""
    if not shutil.which("git") or not (ROOT / ".git").exists():
        return [path for path in sorted(ROOT.rglob("*")) if path.is_file() and not _is_generated(path)]
    names = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout.split("\0")
    return [path for name in names if name and (path := ROOT / name).is_file()]


def _is_generated(path: Path) -> bool:
    parts = path.relative_to(ROOT).parts
    return parts[0] not in (".ci", ".gitignore") and any(
        part.startswith(".") or part == "__pycache__" for part in parts
    )


def python_files(*folders: Path) -> list[Path]:
    return sorted(path for folder in folders for path in folder.rglob("*.py"))


@cache
def parse(path: Path) -> ast.Module:
    """The syntax tree of a file, which is parsed once for all tests of this process."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=name_of(path))


def pages() -> list[Path]:
    """All the prose."""
    return [path for path in tracked() if path.suffix == ".md"]


class Mark(NamedTuple):
    """One `@pytest.mark.behaviour("A5")` or `@pytest.mark.promise("L1")`."""

    kind: str
    id: str
    file: str


@cache
def marks(kind: str) -> tuple[Mark, ...]:
    """Every mark of this kind in the tests, found without importing them."""
    return tuple(
        Mark(kind, value, name_of(path))
        for path in python_files(TESTS)
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Call) and is_mark(node, kind)
        for value in arguments(node, path)
    )


def is_mark(node: ast.expr, kind: str) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Attribute(value=ast.Name("pytest"), attr="mark"), attr=name)):
            return name == kind
        case _:
            return False


def arguments(call: ast.Call, path: Path) -> Iterator[str]:
    for argument in call.args:
        if not (isinstance(argument, ast.Constant) and isinstance(argument.value, str)):
            raise AssertionError(f"{name_of(path)}:{call.lineno}: a mark names its row as a plain string")
        yield argument.value


class Fence(NamedTuple):
    """A fenced block of a page."""

    page: str
    line: int
    tag: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


_FENCE = re.compile(r"^```(?P<tag>[^\n`]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


def fences(*tags: str) -> list[Fence]:
    """The fenced blocks with one of these tags, e.g. `sh run`."""
    found: list[Fence] = []
    for page in pages():
        text = page.read_text(encoding="utf-8")
        for match in _FENCE.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            found.append(Fence(name_of(page), line, match["tag"].strip(), match["text"]))
    return [fence for fence in found if fence.tag in tags]


def without_fences(text: str) -> str:
    return _FENCE.sub("", text)
