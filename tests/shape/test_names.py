"""Names: unique, guessable, and nothing is left for later in the source."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.shape.repository import SRC, TESTS, name_of, parse, python_files

METAPHORS = set(
    [
        "answering",
        "carried",
        "carries",
        "carry",
        "carrying",
        "deed",
        "door",
        "face",
        "glance",
        "guest",
        "hearing",
        "heir",
        "here",
        "keeping",
        "kit",
        "lending",
        "lent",
        "means",
        "place",
        "seat",
        "standing",
        "talk",
        "terms",
        "visit",
        "wish",
    ]
)
"""Coined words. They stand in no name, not even as a part of one."""
PARTICIPLES = set(
    [
        "described",
        "entered",
        "found",
        "given",
        "heard",
        "hinted",
        "joined",
        "kept",
        "known",
        "lent",
        "listed",
        "named",
        "noted",
        "opened",
        "said",
        "served",
        "settled",
        "shown",
        "spoken",
        "told",
        "wanted",
    ]
)
"""Words that say that something happened, not what a thing is. They are no name on their own."""
SAYS_NOTHING = {"manager", "helper", "util", "utils"}
FOREIGN = {"lib", "placeholder"}
"""Names that a library or a protocol gives us."""

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+")
_LATER = re.compile(r"#.*\b(TODO|FIXME|XXX)\b")


def test_a_public_class_name_is_unique_in_the_package() -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for path in python_files(SRC):
        for node in parse(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(name_of(path))
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


def test_no_name_is_a_coined_word_or_says_nothing() -> None:
    assert [
        f"{name_of(path)}: {name}"
        for path in python_files(SRC, TESTS)
        for name in sorted(set(_names(parse(path), path)))
        if _is_bad(name)
    ] == []


def test_nothing_in_the_source_is_left_for_later() -> None:
    assert [
        f"{name_of(path)}:{number}"
        for path in python_files(SRC)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if _LATER.search(line)
    ] == []


def test_nothing_is_assigned_on_another_object() -> None:
    """What an object needs is given to its constructor; what it does later is a method with a name."""
    assert [found for path in python_files(SRC) for found in foreign_assignments(parse(path), name_of(path))] == []


ALLOWED_TARGETS = {
    "logging.raiseExceptions",
    "process.returncode",
    "self.cycle.disconnected",
}
"""Attributes of library objects that can only be set this way."""


def foreign_assignments(tree: ast.Module, file: str) -> list[str]:
    """Assignments to an attribute of something that is neither `self` nor `cls`."""
    targets = (
        target
        for node in ast.walk(tree)
        for top in _targets(node)
        for target in ast.walk(top)
        if isinstance(target, ast.Attribute) and isinstance(target.ctx, ast.Store)
    )
    return [
        f"{file}:{target.lineno}: {ast.unparse(target)}"
        for target in targets
        if not (isinstance(target.value, ast.Name) and target.value.id in ("self", "cls"))
        and ast.unparse(target) not in ALLOWED_TARGETS
    ]


def _targets(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, ast.AugAssign | ast.AnnAssign) else []


def test_an_assignment_on_another_object_is_noticed() -> None:
    tree = ast.parse("worker.on_idle = f\nself.x = 1\nself.turn.scope = None\na, b.c = 1, 2\n")
    assert foreign_assignments(tree, "f.py") == ["f.py:1: worker.on_idle", "f.py:3: self.turn.scope", "f.py:4: b.c"]


@pytest.mark.parametrize(
    "name", ["Told", "_told", "is_told", "Wish", "TaskWish", "carry_on", "SessionManager", "in_place"]
)
def test_a_coined_name_is_noticed(name: str) -> None:
    assert _is_bad(name)


@pytest.mark.parametrize(
    "name", ["replace", "StoredResponse", "not_found", "known_models", "placement", "handler", "where"]
)
def test_a_name_that_only_looks_alike_is_let_through(name: str) -> None:
    assert not _is_bad(name)


def _names(tree: ast.Module, path: Path) -> Iterator[str]:
    """Modules, classes, functions, parameters, fields, attributes, constants. Local variables are for reviewers."""
    yield path.stem
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef():
                yield node.name
                yield from (t.id for n in node.body for t in _targets(n) if isinstance(t, ast.Name))
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                if not node.name.startswith("test_"):
                    yield node.name
                yield from (a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs))
            case ast.Attribute(ctx=ast.Store()):
                yield node.attr
            case _:
                pass
    yield from (t.id for n in tree.body for t in _targets(n) if isinstance(t, ast.Name))


def _is_bad(name: str) -> bool:
    if name in FOREIGN:
        return False
    words = [word.lower() for word in _WORD.findall(name)]
    bare = words[1:] if words[:1] == ["is"] else words
    return bool(METAPHORS.intersection(words) or SAYS_NOTHING.intersection(words)) or (
        len(bare) == 1 and bare[0] in PARTICIPLES
    )
