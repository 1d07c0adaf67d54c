"""Entry bodies as they are stored: JSON, checked when it is read back."""

import msgspec

from outrider.core.errors import Damaged, Refused
from outrider.core.events import Body, Entry

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Body)


def encode(body: Body) -> bytes:
    try:
        return _encoder.encode(body)
    except UnicodeEncodeError as error:
        raise Refused(f"this text holds a character that is none ({error.reason}); leave it out") from error


def decode(body: bytes) -> Body:
    """Raises ValueError when this is no body."""
    return _decoder.decode(body)


def entry(session: str, seq: int, at: int, body: bytes) -> Entry:
    """Raises Damaged when the body cannot be read."""
    try:
        return Entry(seq, at, decode(body))
    except ValueError as error:
        raise Damaged(
            f"entry {seq} of session {session} is damaged ({error}); start Outrider again: "
            "it sets the damaged store aside and recovers what can be read"
        ) from error


def kind(body: Body) -> str:
    """Its tag, as the wire and the database say it."""
    return str(body.__struct_config__.tag)


def check_text(*values: str) -> None:
    """Refuse text that no file and no database can hold, such as half of a surrogate pair."""
    for value in values:
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise Refused(f"{value!r} holds a character that is none; leave it out") from error
