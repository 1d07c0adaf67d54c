"""Messages as a JSON schema describes them, and every way in which one field of them can be different."""

import json
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple, TypeVar, cast

Json = dict[str, Any]
T = TypeVar("T")
Path = tuple[str | int, ...]
_MAX_DEPTH = 7
_OTHER_TYPES: Mapping[str, Any] = {
    "text": "another",
    "number": 7,
    "object": {"another": 1},
    "array": ["another"],
    "null": None,
    "boolean": True,
}
_NAMES_OF_KINDS = {"status", "type", "kind", "phase", "mode", "sessionUpdate", "stopReason", "protocolVersion"}
"""Fields whose values are a list in the schema, to which a version may add."""


class Drift(NamedTuple):
    """One difference to a message: at this path, a field is dropped, renamed, added or gets another value."""

    path: Path
    how: str
    value: Any = None

    def __str__(self) -> str:
        return f"{self.how} {'.'.join(map(str, self.path))}"

    def apply(self, message: Json) -> Json:
        """The message with this difference."""
        changed = json.loads(json.dumps(message))
        holder: Any = changed
        for step in self.path[:-1]:
            holder = holder[step]
        last = self.path[-1]
        match self.how:
            case "drop":
                del holder[last]
            case "rename":
                holder[f"{last}V2"] = holder.pop(last)
            case _:
                holder[last] = self.value
        return changed


Difference = tuple[str, int, Drift]
"""The name of a message, the so-many-th of that name, and how it differs."""


def drifts(message: Any, path: Path = ()) -> Iterator[Drift]:
    """Every difference of one field, at every depth."""
    if isinstance(message, dict):
        fields = cast("Json", message)
        yield Drift((*path, "somethingNew"), "add", {"a": [1, "b"]})
        for name, value in fields.items():
            here = (*path, name)
            yield Drift(here, "drop")
            yield Drift(here, "rename")
            yield from _retyped(value, here)
            if name in _NAMES_OF_KINDS and isinstance(value, str):
                yield Drift(here, "unknown", "somethingNew")
            yield from drifts(value, here)
    elif isinstance(message, list):
        for number, value in enumerate(cast("list[Any]", message)[:1]):
            yield from _retyped(value, (*path, number))
            yield from drifts(value, (*path, number))


def _retyped(value: Any, path: Path) -> Iterator[Drift]:
    for name, other in _OTHER_TYPES.items():
        if type(value) is not type(other):
            yield Drift(path, f"{name} as", other)


class Schema:
    """Samples of what a JSON schema describes."""

    def __init__(self, definitions: Json) -> None:
        self._definitions = definitions

    def samples(self, schema: Any, depth: int = 0) -> list[Any]:
        """One sample with every optional field, and one more for each alternative at any place in it."""
        if not isinstance(schema, dict):
            return [{"any": "thing"}]
        fields = cast("Json", schema)
        if depth > _MAX_DEPTH:
            return [None]
        if reference := fields.get("$ref"):
            return self.samples(self._find(reference), depth + 1)
        for name in ("oneOf", "anyOf", "allOf"):
            if name in fields:
                return self._alternatives(fields, name, depth)
        if "const" in fields:
            return [fields["const"]]
        if "enum" in fields:
            return [fields["enum"][0]]
        kinds = fields.get("type", "object" if "properties" in fields else "")
        kind = cast("list[str]", kinds)[0] if isinstance(kinds, list) else str(kinds)
        return self._of_type(kind, fields, depth)

    def _alternatives(self, fields: Json, name: str, depth: int) -> list[Any]:
        parts = [part for part in fields[name] if part.get("type") != "null"]
        found: list[Any] = [sample for part in parts for sample in self.samples(part, depth)]
        if "properties" not in fields:
            return found or [None]
        # The fields beside the alternatives belong to each of them.
        (rest, *_) = self._of_type("object", fields, depth)
        return [{**rest, **sample} if isinstance(sample, dict) else rest for sample in found]

    def _of_type(self, kind: str, fields: Json, depth: int) -> list[Any]:
        match kind:
            case "object":
                choices = {name: self.samples(part, depth + 1) for name, part in fields.get("properties", {}).items()}
                base = {name: values[0] for name, values in choices.items()}
                return [base, *({**base, name: v} for name, values in choices.items() for v in values[1:])]
            case "array":
                return [[item] for item in self.samples(fields.get("items", True), depth + 1)]
            case "integer" | "number":
                return [1]
            case "boolean":
                return [False]
            case "null":
                return [None]
            case _:
                return ["some text"]

    def _find(self, reference: str) -> Any:
        place: Any = self._definitions
        for step in reference.removeprefix("#/").split("/")[1:]:
            place = place[step]
        return place


def chosen(every: Sequence[T], count: int, most: int = 100_000) -> Sequence[T]:
    """As many as this, always the same; with `--hypothesis-profile=long`, all of them up to `most`."""
    from hypothesis import settings  # The scripted programs run without it.

    size = min(len(every), most) if settings().max_examples > 1_000 else count
    return Random(11).sample(every, size)


def unique(messages: Sequence[Json]) -> list[Json]:
    return list({json.dumps(message, sort_keys=True): message for message in messages}.values())
