"""Redaction of known secrets from text before it is stored, logged or sent to a model."""

import re
from binascii import b2a_base64
from collections.abc import Iterable, Iterator

import msgspec
from msgspec import Struct

from outrider.config.schema import SETTINGS, Config
from outrider.config.secrets import Secret

PLACEHOLDER = "%secret%"
"""No shell expands it: as a pattern, it could name other files when a command is written with it. It is not longer than
the shortest secret."""
MIN_SECRET_LENGTH = 8
"""Minimum length of a secret in characters: anything shorter also occurs in ordinary text."""
DUMMY_KEYS = frozenset(
    [
        "not-needed",
        "no-key-required",
        "sk-no-key-required",
        "lm-studio",
        "changeme",
        "placeholder",
        "anything",
        "whatever",
    ]
)
"""Common placeholders for a key where none is needed; these also occur in ordinary text."""
_KEY_PREFIX = "ork_"
OUTRIDER_KEY = re.compile(_KEY_PREFIX + r"[a-z2-7]{8}_[0-9a-f]{64}", re.ASCII)
"""An API key issued by Outrider. Only digests of these are stored, so they are found by their form."""
_RAW_OUTRIDER_KEY = re.compile(OUTRIDER_KEY.pattern.encode())
_UNFINISHED_KEY = re.compile(_KEY_PREFIX.encode() + rb"(?:[a-z2-7]{0,7}|[a-z2-7]{8}(?:_[0-9a-f]{0,63})?)\Z")
_MAX_KEY_BYTES = 128
_MIN_UNFINISHED = 4
"""Bytes of the beginning of a secret that are taken for one."""
_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_URL_SAFE_ALTERNATIVES = {"+": "[+-]", "/": "[/_]"}
"""Characters that differ in the URL-safe base64 alphabet."""


class Redactor:
    """Replaces secrets in text: verbatim, in JSON, in URLs and in base64, also when encoded together with other text.

    API keys issued by Outrider are replaced too. Only whole secrets are found: a truncated one stays.
    """

    __slots__ = ("_encoded", "_forms", "_raw_forms", "margin")

    def __init__(self, values: Iterable[str]) -> None:
        # Longest first: where one secret is part of another, the whole longer one must be replaced.
        # Bytes in the environment that are not UTF-8 become lone surrogates, which cannot be encoded.
        texts = {value.encode("utf-8", "replace").decode() for value in values if len(value) >= MIN_SECRET_LENGTH}
        secrets = sorted(texts, key=lambda value: (-len(value), value))
        self._forms = tuple(dict.fromkeys(form for value in secrets for form in _text_forms(value)))
        self._raw_forms = tuple(form.encode() for form in self._forms)
        self._encoded = tuple(_base64_form(value.encode(), at) for value in secrets for at in range(3))
        self.margin = 2 * max((len(form) for form in self._raw_forms), default=0) + _MAX_KEY_BYTES
        """Bytes around a part of a content within which a secret that overlaps the part lies, in any form."""

    def redact(self, text: str) -> str:
        """The text with each secret replaced by `%secret%`; the same object when it contains none."""
        for form in self._forms:
            if form in text:
                text = text.replace(form, PLACEHOLDER)
        for encoded in self._encoded:
            if any(anchor in text for anchor in encoded.anchors):
                text = re.sub(encoded.pattern, PLACEHOLDER, text)
        return OUTRIDER_KEY.sub(PLACEHOLDER, text) if _KEY_PREFIX in text else text

    def mask(self, content: bytes) -> bytes:
        """Like `redact`, for bytes, with placeholders as long as what they replace: every offset stays valid."""
        for form in self._raw_forms:
            if form in content:
                content = content.replace(form, _filler(len(form)))
        for encoded in self._encoded:
            if any(anchor.encode() in content for anchor in encoded.anchors):
                content = re.sub(encoded.pattern.encode(), lambda match: _filler(len(match[0])), content)
        return _RAW_OUTRIDER_KEY.sub(lambda match: _filler(len(match[0])), content)

    def unfinished_bytes(self, content: bytes) -> int:
        """How many bytes at the end may be the beginning of a secret, of which the rest is still to be written."""
        key = _UNFINISHED_KEY.search(content, max(0, len(content) - _MAX_KEY_BYTES))
        return max(*(_unfinished_bytes(content, form) for form in self._raw_forms), len(key[0]) if key else 0, 0)

    def __bool__(self) -> bool:
        return bool(self._forms)

    def __repr__(self) -> str:
        return "Redactor(…)" if self._forms else "Redactor()"


def build_redactor(config: Config) -> Redactor:
    """A redactor for all secrets of a configuration: those set, those referred to, and the keys in the environment."""
    secrets = [config.value(setting.name) for setting in SETTINGS if setting.is_secret]
    values = (value.reveal() for value in (*secrets, *config.keys.values()) if isinstance(value, Secret))
    return Redactor(value for value in values if value.lower() not in DUMMY_KEYS)


def _filler(length: int) -> bytes:
    return PLACEHOLDER[:-1].encode().ljust(length - 1, b"-") + PLACEHOLDER[-1:].encode()


def _unfinished_bytes(content: bytes, form: bytes) -> int:
    tail = content[max(0, len(content) - len(form) + 1) :]
    at = tail.find(form[:_MIN_UNFINISHED])
    while at >= 0:
        if form.startswith(tail[at:]):
            return len(tail) - at
        at = tail.find(form[:_MIN_UNFINISHED], at + 1)
    return 0


def _text_forms(value: str) -> Iterator[str]:
    """The secret verbatim, in JSON and in a URL."""
    yield value
    yield msgspec.json.encode(value).decode()[1:-1]
    for unescaped in (_UNRESERVED, _UNRESERVED | frozenset(b"/")):
        for escape in ("%{:02X}", "%{:02x}"):
            yield "".join(chr(byte) if byte in unescaped else escape.format(byte) for byte in value.encode())


class _Base64Form(Struct, frozen=True):
    """A secret in base64, at one of its three possible offsets."""

    anchors: tuple[str, ...]
    """Two adjacent pieces in each alphabet. A line break splits at most one of them, so a text without any of them does
    not contain the secret; searching for them is much faster than matching the pattern."""
    pattern: str


def _base64_form(value: bytes, before: int) -> _Base64Form:
    """The base64 characters that depend on the secret alone, with this many bytes (modulo 3) before it."""
    first, last = -(-before * 8 // 6), (before + len(value)) * 8 // 6
    fixed = b2a_base64(bytes(before) + value, newline=False).decode()[first:last]
    size = min(16, len(fixed) // 2)
    pieces = (fixed[:size], fixed[size : 2 * size])
    shared = r"(?:[\w+/-]\s*)?"  # A character with bits of both the secret and the text beside it.
    letters = r"\s*".join(_URL_SAFE_ALTERNATIVES.get(letter, letter) for letter in fixed)
    tail = r"(?:\s*[\w+/-])?" if (before + len(value)) * 8 % 6 else ""
    return _Base64Form(
        anchors=tuple(dict.fromkeys((*pieces, *(piece.replace("+", "-").replace("/", "_") for piece in pieces)))),
        pattern=f"{shared if before else ''}{letters}{tail}={{0,2}}",
    )
