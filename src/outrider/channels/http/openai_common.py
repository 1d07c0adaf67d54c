"""What both of OpenAI's APIs do with a request before it is an input."""

from hashlib import blake2b
from typing import Any

import msgspec
from msgspec import Struct
from starlette.requests import Request

from outrider.app.agent import Agent
from outrider.channels.http.failures import HttpError
from outrider.core.plan import Bounds

KEY_HEADER = "idempotency-key"
MAX_KEY_CHARS = 255
IGNORED_HEADER = "x-outrider-ignored"
"""Names the parameters of a request that were not used."""


def idempotency_key(request: Request) -> str:
    """What the client calls this request, so that sending it again does it once; empty when it did not say."""
    key = request.headers.get(KEY_HEADER, "").strip()
    if len(key) > MAX_KEY_CHARS:
        raise HttpError(400, f"an Idempotency-Key has at most {MAX_KEY_CHARS} characters", "idempotency_key")
    return key


class SamplingParameters(Struct):
    """What a client may ask of the model itself. It is taken and not used: the model's own settings hold."""

    max_tokens: Any = None
    max_completion_tokens: Any = None
    max_output_tokens: Any = None
    temperature: Any = None
    top_p: Any = None
    stop: Any = None
    seed: Any = None
    presence_penalty: Any = None
    frequency_penalty: Any = None
    logit_bias: Any = None
    reasoning_effort: Any = None
    reasoning: Any = None


_decode_sampling = msgspec.json.Decoder(SamplingParameters).decode


def ignored_parameters_header(body: bytes) -> dict[str, str]:
    """A header that names what of a request was not used; nothing where all was."""
    asked = _decode_sampling(body)
    names = [name for name in SamplingParameters.__struct_fields__ if getattr(asked, name) is not None]
    return {IGNORED_HEADER: ", ".join(names)} if names else {}


def digest(*words: str) -> str:
    """A name for these words that tells nothing of them."""
    return blake2b("\0".join(words).encode("utf-8", "replace"), digest_size=16).hexdigest()


def bounds_of(agent: Agent) -> Bounds:
    """What a turn may use here."""
    limits = agent.config.limits
    return Bounds(limits.steps, limits.repeats, limits.spend)
