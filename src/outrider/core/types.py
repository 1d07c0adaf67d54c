"""The small values entries are made of: calls, images, reasoning, usage.

What things can do, declared as data.
"""

from enum import Enum

from msgspec import Struct

from outrider.core.errors import Refused


class Image(Struct, frozen=True):
    """A picture, kept as a blob."""

    blob: str
    media: str
    """Its media type, e.g. `image/png`."""


class Call(Struct, frozen=True, omit_defaults=True):
    """The model wants a tool run."""

    id: str
    tool: str
    args: dict[str, object]
    broken: str = ""
    """What the model wrote when that was not a JSON object; such a call is answered, never run."""


class Reasoning(Struct, frozen=True, omit_defaults=True):
    """What the model thought aloud before a reply, kept so that its provider can be shown it again."""

    text: str
    wire: str
    """The wire format that understands `opaque`; others leave the whole part out."""
    opaque: str = ""
    """The provider's own block as JSON (signatures, encrypted content), replayed unchanged."""


class Usage(Struct, frozen=True, omit_defaults=True):
    """Tokens of one reply, or of several added up."""

    input: int = 0
    """All tokens of the prompt, the cached ones among them."""
    output: int = 0
    cached: int = 0
    """Those of `input` that were read from the provider's cache."""
    written: int = 0
    """Those of `input` that were written to the provider's cache."""
    reasoning: int = 0
    """Those of `output` spent on reasoning."""

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.input + other.input,
            self.output + other.output,
            self.cached + other.cached,
            self.written + other.written,
            self.reasoning + other.reasoning,
        )


class Prices(Struct, frozen=True):
    """Dollars for a million tokens."""

    input: float
    output: float
    cached: float | None = None
    """Reading from the cache; as `input` when not given."""
    written: float | None = None
    """Writing to the cache; as `input` when not given."""


def cost(usage: Usage, prices: Prices) -> float:
    """What these tokens cost, in dollars."""
    plain = max(0, usage.input - usage.cached - usage.written)
    cached = prices.input if prices.cached is None else prices.cached
    written = prices.input if prices.written is None else prices.written
    total = plain * prices.input + usage.cached * cached + usage.written * written + usage.output * prices.output
    return total / 1_000_000


_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_CALLS = 128
"""More calls than this in one reply are refused."""


def call_id(saw: int, index: int) -> str:
    """A call's id, unique in its session and valid for every provider.

    Nine letters and digits: the strictest rule among them.
    """
    if index >= _CALLS:
        raise Refused(f"the model asked for more than {_CALLS} calls in one reply")
    number, text = saw * _CALLS + index, ""
    while number:
        number, digit = divmod(number, len(_DIGITS))
        text = _DIGITS[digit] + text
    return "c" + text.rjust(8, "0")


class Replay(Enum):
    """Whether running a call a second time is harmless. Declared by each tool."""

    SAFE = "safe"
    NEVER = "never"


class ModelTraits(Struct, frozen=True):
    name: str
    """As people write it, e.g. `anthropic:claude-sonnet-5`."""
    wire: str
    window: int = 0
    """Tokens the model can read; 0 when unknown."""
    images: bool = True
    prices: Prices | None = None


class RuntimeTraits(Struct, frozen=True):
    name: str
    steers: bool
    """Whether an input that arrives during a turn can reach it."""
    resumes: bool = True
    """Whether a turn that a crash cut off goes on; else it ends as failed, saying so."""
    bounded: bool = True
    """Whether our limits on steps and spend hold inside its turns; else it keeps to its own."""
    takes_client_tools: bool = True
    """Whether tools of whoever sent an input can be used in its turns."""


class ToolSpec(Struct, frozen=True):
    """A tool as the model is told of it."""

    name: str
    description: str
    schema: dict[str, object]
    """JSON schema of its arguments: always an object."""
    replay: Replay = Replay.SAFE
