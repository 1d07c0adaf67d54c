"""What a key looks like, and whether a secret opens it. Pure."""

import hashlib
import hmac
import re

KEY_PATTERN = re.compile(r"ork_([a-z2-7]{8})_([0-9a-f]{64})", re.ASCII)
"""A whole key, as its owner has it: its id, which is no secret, and 256 random bits."""


def split_key(text: str) -> tuple[str, str] | None:
    """The id and the secret of a key, or None when this is none of ours."""
    found = KEY_PATTERN.fullmatch(text)
    return (found[1], found[2]) if found else None


def digest_of(secret: str) -> bytes:
    """What is kept in place of a secret.

    One round of SHA-256 and no salt: slow hashes make guessing a password dear, and nobody guesses 256 random bits.
    """
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()


def secret_matches(secret: str, digest: bytes) -> bool:
    """Whether this is the secret that was digested. Takes as long for any secret of the same length."""
    return hmac.compare_digest(digest_of(secret), digest)
