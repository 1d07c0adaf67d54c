"""A webhook as it travels: the event, the headers that sign it by the Standard Webhooks rules, and their secret."""

import binascii
import hashlib
import hmac
import secrets
from base64 import b64decode, b64encode
from collections.abc import Mapping

import msgspec

from outrider.channels.http.responses_render import response_id
from outrider.config.choice import Secret
from outrider.config.load import Config
from outrider.config.secrets import resolve_secret
from outrider.core.errors import Refused
from outrider.store.hooks import WebhookDelivery
from outrider.store.keys import write_private

_SECRET_PREFIX = "whsec_"
_SHORTEST, _LONGEST = 24, 64
SECRET_FILE = "webhook_secret"
"""In the home: the secret that was made because none was set."""


def render_webhook_event(hook: WebhookDelivery, status: str, at: int) -> bytes:
    """The event that tells how a response ended, `at` in milliseconds. The same bytes for the same end."""
    told = {
        "id": f"evt_{hook.id.removeprefix('wh_')}",
        "object": "event",
        "created_at": at // 1000,
        "type": f"response.{status}",
        "data": {"id": response_id(hook.session, hook.seq)},
    }
    return msgspec.json.encode(told)


def signed_headers(secret: Secret, id: str, at: int, body: bytes) -> Mapping[str, str]:
    """The headers of one attempt, `at` in seconds. Raises Refused when the secret is none."""
    digest = hmac.new(parse_secret(secret), f"{id}.{at}.".encode() + body, hashlib.sha256).digest()
    return {
        "content-type": "application/json",
        "webhook-id": id,
        "webhook-timestamp": str(at),
        "webhook-signature": f"v1,{b64encode(digest).decode()}",
    }


def parse_secret(secret: Secret) -> bytes:
    """The key that is in it. Raises Refused when there is none, without saying what was given."""
    prefix, mark, text = secret.reveal().partition("_")
    try:
        key = b64decode(text, validate=True) if prefix + mark == _SECRET_PREFIX else b""
    except (binascii.Error, ValueError):
        key = b""
    if not _SHORTEST <= len(key) <= _LONGEST:
        raise Refused(
            f"webhook.secret is not valid: it begins with {_SECRET_PREFIX}, and then come "
            f"{_SHORTEST} to {_LONGEST} bytes in base64"
        )
    return key


def find_secret(config: Config) -> tuple[Secret, str]:
    """The secret, made and left in the home if none is set, and where it is. Raises Refused when it cannot be used."""
    path = config.home / SECRET_FILE
    if place := config.references.get("webhook.secret"):
        secret = config.webhook.secret
        if not secret:
            raise Refused(f"webhook.secret is to come from {place}, and there is nothing there")
    else:
        if not path.exists():
            write_private(path, _SECRET_PREFIX + b64encode(secrets.token_bytes(32)).decode())
        secret, place = resolve_secret("webhook.secret", f"file:{path}", {}), str(path)
    parse_secret(secret)
    return secret, place
