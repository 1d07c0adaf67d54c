"""outrider.system.images."""

from outrider.core.errors import Refused

_SIGNATURES = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
}


def media_type(content: bytes) -> str:
    """The media type of a picture, by its first bytes. Raises Refused for anything else."""
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "image/webp"
    for magic, media in _SIGNATURES.items():
        if content.startswith(magic):
            return media
    raise Refused("not a picture that models can read: PNG, JPEG, GIF and WebP are taken")


_IMAGE_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)


def image_media_type(head: bytes) -> str:
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image/webp"
    return next((media for magic, media in _IMAGE_SIGNATURES if head.startswith(magic)), "")
