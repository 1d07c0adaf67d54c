"""Takes the secrets that are known here out of texts, before those are stored, logged or sent to a model."""

import re
from binascii import b2a_base64
from collections.abc import Iterable, Iterator

import msgspec
from msgspec import Struct

from outrider.config.schema import SETTINGS, Config
from outrider.config.secrets import Secret

PLACEHOLDER = "[secret]"
MIN_SECRET_LENGTH = 8
"""Characters a secret has at least: anything shorter is found in innocent texts."""
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
"""What people write for a key where none is needed: words like any other, which texts may hold."""
_KEY_PREFIX = "ork_"
OUTRIDER_KEY = re.compile(_KEY_PREFIX + r"[a-z2-7]{8}_[0-9a-f]{64}", re.ASCII)
"""A key of Outrider's own. Only digests of those are known here, so they are found by their shape."""
_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_URL_SAFE_ALTERNATIVES = {"+": "[+-]", "/": "[/_]"}
"""Where the alphabet of URLs has other letters than the usual one."""


class Redactor:
    """Replaces secrets in texts: as they are, in JSON, in URLs, and in base64, also with other text around them.

    Keys of Outrider's own are replaced, too, whoever has them.
    Only whole secrets are found: a text that was cut inside one keeps the half it has.
    """

    __slots__ = ("_encoded", "_forms")

    def __init__(self, values: Iterable[str]) -> None:
        # Longest first: where one secret is part of another, all of the longer one must go.
        # Bytes that are no text come in from the environment as lone surrogates, and can not be encoded in any way.
        texts = {value.encode("utf-8", "replace").decode() for value in values if len(value) >= MIN_SECRET_LENGTH}
        kept = sorted(texts, key=lambda value: (-len(value), value))
        self._forms = tuple(dict.fromkeys(form for value in kept for form in _text_forms(value)))
        self._encoded = tuple(_base64_form(value.encode(), at) for value in kept for at in range(3))

    def redact(self, text: str) -> str:
        """The text with `[secret]` in place of each secret; the very same object when there is none in it."""
        for form in self._forms:
            if form in text:
                text = text.replace(form, PLACEHOLDER)
        for encoded in self._encoded:
            if any(anchor in text for anchor in encoded.anchors):
                text = re.sub(encoded.pattern, PLACEHOLDER, text)
        return OUTRIDER_KEY.sub(PLACEHOLDER, text) if _KEY_PREFIX in text else text

    def __bool__(self) -> bool:
        """Whether it knows any secret."""
        return bool(self._forms)

    def __repr__(self) -> str:
        return "Redactor(…)" if self._forms else "Redactor()"


def build_redactor(config: Config) -> Redactor:
    """For every secret this configuration knows: those set, those referred to, and the keys in the environment."""
    known = [config.value(setting.name) for setting in SETTINGS if setting.is_secret]
    values = (value.reveal() for value in (*known, *config.keys.values()) if isinstance(value, Secret))
    return Redactor(value for value in values if value.lower() not in DUMMY_KEYS)


def _text_forms(value: str) -> Iterator[str]:
    """The secret, and how it looks in JSON and in a URL."""
    yield value
    yield msgspec.json.encode(value).decode()[1:-1]
    for kept in (_UNRESERVED, _UNRESERVED | frozenset(b"/")):
        for escape in ("%{:02X}", "%{:02x}"):
            yield "".join(chr(byte) if byte in kept else escape.format(byte) for byte in value.encode())


class _Base64Form(Struct, frozen=True):
    """A secret in base64, in one of the three ways it can fall on the letters."""

    anchors: tuple[str, ...]
    """Two neighbouring pieces in each alphabet. A line's end breaks at most one of them, so without any there is
    nothing to find; looking for them is much quicker than matching."""
    pattern: str


def _base64_form(value: bytes, before: int) -> _Base64Form:
    """What is sure of it with this many bytes (modulo 3) before it and anything behind."""
    first, last = -(-before * 8 // 6), (before + len(value)) * 8 // 6
    sure = b2a_base64(bytes(before) + value, newline=False).decode()[first:last]
    size = min(16, len(sure) // 2)
    pieces = (sure[:size], sure[size : 2 * size])
    shared = r"(?:[\w+/-]\s*)?"  # A letter that holds bits of the secret and of its neighbour.
    letters = r"\s*".join(_URL_SAFE_ALTERNATIVES.get(letter, letter) for letter in sure)
    tail = r"(?:\s*[\w+/-])?" if (before + len(value)) * 8 % 6 else ""
    return _Base64Form(
        anchors=tuple(dict.fromkeys((*pieces, *(piece.replace("+", "-").replace("/", "_") for piece in pieces)))),
        pattern=f"{shared if before else ''}{letters}{tail}={{0,2}}",
    )
