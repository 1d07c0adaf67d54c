"""Images that external programs get and report. Pure."""

import binascii
from base64 import b64decode, b64encode

from msgspec import Struct

from outrider.core.text import size
from outrider.system.images import sniff_media_type

MAX_IMAGES = 8
"""Images of one result that the journal holds."""
MAX_IMAGE_BYTES = 5 * 1024 * 1024
"""Bytes of one of them."""
IMAGE_NOTE = "[image]"
"""Where an image is in the text of a result."""


class ImageContent(Struct, frozen=True):
    media: str
    content: bytes


def data_url(media: str, content: bytes) -> str:
    return f"data:{media};base64,{b64encode(content).decode()}"


def parse_image(data: str) -> ImageContent | str:
    """An image in Base64, or a data URL of one; what to say in its place when it cannot be kept."""
    encoded = data.partition("base64,")[2] if data.startswith("data:") else data
    if len(encoded) * 3 // 4 > MAX_IMAGE_BYTES:
        return f"[an image was here, larger than {size(MAX_IMAGE_BYTES)}: it was left out]"
    try:
        content = b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        return "[an image was here, which cannot be read]"
    media = sniff_media_type(content)
    return ImageContent(media, content) if media else "[an image was here, in a format that cannot be shown]"


class ImageCollector:
    """Collects the images of one result, and says what becomes of each."""

    def __init__(self) -> None:
        self.images: list[ImageContent] = []

    def add(self, data: str) -> str:
        """The text in place of this image."""
        if len(self.images) >= MAX_IMAGES:
            return f"[an image was here, one of more than {MAX_IMAGES}: it was left out]"
        image = parse_image(data)
        if isinstance(image, ImageContent):
            self.images.append(image)
            return IMAGE_NOTE
        return image
