"""Media types of images, recognised by their first bytes."""

from outrider.core.errors import Refused

_SIGNATURES = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
}


def sniff_media_type(head: bytes) -> str:
    """The media type of a supported image; empty for anything else."""
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image/webp"
    return next((media for signature, media in _SIGNATURES.items() if head.startswith(signature)), "")


def media_type(content: bytes) -> str:
    """The media type of a supported image. Raises Refused for anything else."""
    if media := sniff_media_type(content):
        return media
    raise Refused("not a supported image; use PNG, JPEG, GIF or WebP")
