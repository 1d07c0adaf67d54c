"""Files as text and back without a byte lost: encodings, line ends, and replacing one passage."""

import codecs
from collections.abc import Sequence
from difflib import get_close_matches

import msgspec
from msgspec import Struct

from outrider.core.errors import Refused

_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_MAX_COMPARED = 3_000
"""Lines of a file that are looked through for one like the one that was not found."""
_EXCERPT_LINES = 12


class TextFile(Struct, frozen=True):
    """A decoded file. `render_text` gives back the very bytes it came from."""

    body: str
    encoding: str = "utf-8"
    bom: bytes = b""

    @property
    def remark(self) -> str:
        """What is unusual about it, or nothing."""
        if self.encoding == "latin-1":
            return "not UTF-8, read as Latin-1"
        return "" if self.encoding == "utf-8" else self.encoding.upper()


def bom_of(raw: bytes) -> tuple[bytes, str]:
    """The byte order mark these bytes begin with, and what it says; empty and `utf-8` without one."""
    return next(((bom, encoding) for bom, encoding in _BOMS if raw.startswith(bom)), (b"", "utf-8"))


def parse_text(raw: bytes) -> TextFile:
    """Decode by the byte order mark, as UTF-8, or else as Latin-1, which fits any bytes."""
    bom, encoding = bom_of(raw)
    try:
        return TextFile(raw[len(bom) :].decode(encoding), encoding, bom)
    except UnicodeDecodeError:
        return TextFile(raw.decode("latin-1"), "latin-1")


def render_text(text: TextFile) -> bytes:
    """The bytes of a file. Raises Refused when its encoding has no room for some character."""
    try:
        return text.bom + text.body.encode(text.encoding)
    except UnicodeEncodeError as error:
        bad = text.body[error.start : error.start + 1].encode("utf-8", "backslashreplace").decode()
        raise Refused(f"the character {bad} cannot be written in this file's encoding, {text.encoding}") from None


def replace_passage(text: TextFile, old: str, new: str, every: bool) -> tuple[TextFile, int]:
    """The text with one passage replaced (or every one), and how many. Line ends stay as the file has them.

    Raises Refused when the passage is not there exactly once, with what is there instead.
    """
    if not old:
        raise Refused("old is empty; to make a file or to replace all of it, use write")
    body, old, new, crlf = _with_same_line_ends(text.body, old, new)
    if old == new:
        raise Refused("old and new are the same; nothing would change")
    count = body.count(old)
    if not count:
        raise Refused(_not_found(body, old))
    if count > 1 and not every:
        raise Refused(
            f"old occurs {count} times, at lines {_line_numbers(body, old)}; "
            "give more of the text around the one you mean, or set all"
        )
    body = body.replace(old, new)
    return msgspec.structs.replace(text, body=body.replace("\n", "\r\n") if crlf else body), count


def is_already_replaced(text: TextFile, old: str, new: str) -> bool:
    """Whether the text looks as it would after replacing: the new passage is there, the old one is not."""
    body, old, new, _ = _with_same_line_ends(text.body, old, new)
    if old and old in new:
        return new in body and all(old not in rest for rest in body.split(new))
    return bool(old) and new in body and old not in body


def _with_same_line_ends(body: str, old: str, new: str) -> tuple[str, str, str, bool]:
    """Body, old and new with the same line ends, and whether the body's are to be made CRLF again."""
    ends, crlf = body.count("\n"), body.count("\r\n")
    if crlf and crlf < ends:  # mixed: whichever kind the passage has
        windows = _unix(old).replace("\n", "\r\n")
        if old not in body and windows in body:
            return body, windows, _unix(new).replace("\n", "\r\n"), False
        return body, old, new, False
    return _unix(body) if crlf else body, _unix(old), _unix(new), bool(crlf)


def _unix(text: str) -> str:
    return text.replace("\r\n", "\n")


def _line_numbers(body: str, old: str) -> str:
    lines: list[str] = []
    at = body.find(old)
    while at >= 0 and len(lines) < 5:
        lines.append(str(body.count("\n", 0, at) + 1))
        at = body.find(old, at + len(old))
    return ", ".join(lines) + (" …" if at >= 0 else "")


def _not_found(body: str, old: str) -> str:
    lines, wanted = body.split("\n"), old.strip("\n").split("\n")
    bare = [line.strip() for line in wanted]
    stripped = [line.strip() for line in lines]
    for at in range(len(lines) - len(wanted) + 1):
        if stripped[at] == bare[0] and stripped[at : at + len(bare)] == bare:
            return "old is not in the file like this; only its white space differs from\n" + _excerpt(
                lines, at, len(wanted)
            )
    first = next((line for line in bare if line), "")[:200]
    near = get_close_matches(first, [line[:200] for line in stripped[:_MAX_COMPARED] if line], n=1, cutoff=0.5)
    if not near:
        return "old is not in the file, nor anything like it; read the file again"
    at = next(number for number, line in enumerate(stripped) if line[:200] == near[0])
    return "old is not in the file; the closest is\n" + _excerpt(lines, at, len(wanted))


def _excerpt(lines: Sequence[str], at: int, count: int) -> str:
    chosen = lines[at : at + min(count + 2, _EXCERPT_LINES)]
    head = f"lines {at + 1}–{at + len(chosen)}:"
    return "\n".join([head, *(line.rstrip("\r")[:300] for line in chosen)])
