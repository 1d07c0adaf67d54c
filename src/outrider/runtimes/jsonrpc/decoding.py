"""Lenient decoding of messages of other programs, whose fields change from version to version.

A message that has the expected types is decoded at once. Otherwise each field is decoded by itself: one that is null,
missing or renamed is absent, one of another type is absent and is named in `unread`, and the others are kept. Nothing
is raised, whatever the message is.
"""

import logging
from collections.abc import Callable, Iterable
from types import UnionType
from typing import Annotated, Any, ClassVar, Generic, TypeVar, Union, cast, get_args, get_origin

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import fields as fields_of

UNREAD = "_outrider/unread"
"""The wire name of a field that the decoder sets itself: `unread: tuple[str, ...] = field(default=(), name=UNREAD)`."""
WHOLE = "the whole message"
"""In `unread` when the message is not even an object."""
_MAX_UNREAD = 20
_MAX_REPORTED = 20
"""Kinds of unread messages that are reported; more say nothing new."""
_ERRORS = (msgspec.DecodeError, RecursionError)
_NULL = b"null"
T = TypeVar("T")


class TextOrObject(Struct):
    """Base of an object in whose place a text may be, which then is the value of its field `text_field`."""

    text_field: ClassVar[str] = "message"


class LenientDecoder(Generic[T]):
    """Decodes JSON as this struct, whose fields all have defaults."""

    def __init__(self, kind: type[T]) -> None:
        self._kind = kind
        self._strict_decoder = msgspec.json.Decoder(kind)
        self._names_unread = any(field.encode_name == UNREAD for field in fields_of(cast("type[Struct]", kind)))

    def decode(self, raw: Raw | bytes) -> T:
        """Raises nothing."""
        try:
            return self._strict_decoder.decode(raw)
        except _ERRORS:
            pass
        unread: list[str] = []
        value = _decode_struct(Raw(bytes(raw)), cast("type[Struct]", self._kind), "", unread)
        if unread and self._names_unread:
            value = msgspec.structs.replace(value, unread=tuple(unread[:_MAX_UNREAD]))
        return cast("T", value)


def decode_value(raw: Raw | bytes, kind: type[T]) -> T | None:
    """The value as this type, field by field where needed; None when it is something else."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except _ERRORS:
        pass
    try:
        return _decode_part(Raw(bytes(raw)), kind, "", [])
    except _Unreadable:
        return None


def decode_any(raw: Raw | bytes) -> Any:
    """The value as dicts, lists, texts and numbers; None when it contains something that Python has no value for."""
    try:
        return msgspec.json.decode(raw)
    except _ERRORS:
        return None


class UnreadReporter:
    """Reports what could not be read of a program's messages, each kind once: in a log, and to a person."""

    def __init__(self, program: str, log: logging.Logger, show: Callable[[str], None]) -> None:
        """`show` is called with each report."""
        self._program = program
        self._log = log
        self._show = show
        self._reported: set[tuple[str, ...]] = set()

    def report(self, message: str, unread: Iterable[str]) -> None:
        """`unread` are fields of this message."""
        names = tuple(unread)
        if not names or (message, *names) in self._reported or len(self._reported) >= _MAX_REPORTED:
            return
        self._reported.add((message, *names))
        text = f"Outrider could not read all that {self._program} sent: {message}: {', '.join(names)}"
        self._log.warning("%s", text)
        self._show(text)


class _Unreadable(Exception):
    """The value has another type, and no part of it can be used."""


def _decode_struct(raw: Raw, kind: type[Struct], path: str, unread: list[str]) -> Struct:
    try:
        parts = msgspec.json.decode(raw, type=dict[str, Raw])
    except _ERRORS:
        if issubclass(kind, TextOrObject) and (text := _decode_text(raw)) is not None:
            return kind(**{kind.text_field: text})
        if path:
            raise _Unreadable from None
        unread.append(WHOLE)
        return kind()
    values: dict[str, Any] = {}
    for field in fields_of(kind):
        part = parts.get(field.encode_name)
        if part is None or field.encode_name == UNREAD or bytes(part) == _NULL:
            continue
        name = f"{path}.{field.encode_name}" if path else field.encode_name
        try:
            values[field.name] = _decode_part(part, field.type, name, unread)
        except _Unreadable:
            unread.append(name)
    return kind(**values)


def _decode_part(raw: Raw, kind: Any, path: str, unread: list[str]) -> Any:
    """Raises _Unreadable."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except _ERRORS:
        pass
    for each in _alternatives(kind):
        if isinstance(each, type) and issubclass(each, Struct):
            return _decode_struct(raw, each, path or WHOLE, unread)
        if get_origin(each) in (list, tuple):
            return _decode_items(raw, each, path, unread)
        if each is str and path.lower().endswith("id") and (number := _decode_number(raw)) is not None:
            return str(number)
        if each is int and (text := _decode_text(raw) or "").isdecimal() and len(text) < 16:
            return int(text)
    raise _Unreadable


def _decode_items(raw: Raw, kind: Any, path: str, unread: list[str]) -> Any:
    try:
        items = msgspec.json.decode(raw, type=list[Raw])
    except _ERRORS:
        raise _Unreadable from None
    values: list[Any] = []
    for number, item in enumerate(items):
        try:
            values.append(_decode_part(item, get_args(kind)[0], f"{path}[{number}]", unread))
        except _Unreadable:
            unread.append(f"{path}[{number}]")
    return values if get_origin(kind) is list else tuple(values)


def _alternatives(kind: Any) -> tuple[Any, ...]:
    if get_origin(kind) is Annotated:
        return _alternatives(get_args(kind)[0])
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _decode_text(raw: Raw) -> str | None:
    try:
        return msgspec.json.decode(raw, type=str)
    except _ERRORS:
        return None


def _decode_number(raw: Raw) -> int | None:
    """An id may be a number in another version."""
    try:
        return msgspec.json.decode(raw, type=int)
    except _ERRORS:
        return None
