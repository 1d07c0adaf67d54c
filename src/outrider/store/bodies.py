"""Entry bodies as they are stored: JSON, checked when it is read back.

A new kind of entry needs a new version of the store: an older Outrider then refuses it, and does not call it damage.
"""

import msgspec

from outrider.core.errors import StoreDamaged
from outrider.core.events import Body, Entry

_body_encoder = msgspec.json.Encoder()
_body_decoder = msgspec.json.Decoder(Body)


def encode_body(body: Body) -> bytes:
    """Raises UnicodeEncodeError for text that no file can hold, such as half of a surrogate pair."""
    return _body_encoder.encode(body)


def decode_body(body: bytes) -> Body:
    """Raises ValueError when this is no body."""
    return _body_decoder.decode(body)


def parse_entry(session: str, seq: int, at: int, body: bytes) -> Entry:
    """Raises Damaged when the body cannot be read."""
    try:
        return Entry(seq, at, decode_body(body))
    except ValueError as error:
        raise StoreDamaged(
            f"entry {seq} of session {session} is damaged ({error}); start Outrider again: "
            "it sets the damaged store aside and recovers what can be read"
        ) from error


def entry_kind(body: Body) -> str:
    """Its tag, as the wire and the database say it."""
    return str(body.__struct_config__.tag)
