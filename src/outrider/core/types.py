"""Values shared by entries and ports: calls, images, reasoning, usage, workspace identities, tool specifications, and
traits.

Traits declare as data what a model or runtime can do.
"""

from collections.abc import Mapping
from enum import Enum

from msgspec import Struct

from outrider.core.errors import Refused


class WorkspaceIdentity(Struct, frozen=True):
    """Which folder a workspace is. Its path may lead to another folder later."""

    device: int
    inode: int
    boot: str
    """The boot in which the device had this number. It may have another one in the next."""


class Image(Struct, frozen=True):
    """A picture, stored as a blob."""

    blob: str
    media: str
    """Its media type, e.g. `image/png`."""


class Call(Struct, frozen=True, omit_defaults=True):
    id: str
    tool: str
    args: dict[str, object]
    broken: str = ""
    """The arguments as the model wrote them, when they are not a JSON object. Such a call fails and is never run."""


class Reasoning(Struct, frozen=True, omit_defaults=True):
    """The reasoning before a reply, kept so that it can be sent to its provider again."""

    text: str
    wire: str
    """The wire format that understands `opaque`. Other formats leave the part out."""
    opaque: str = ""
    """The provider's own block as JSON (signatures, encrypted content), sent back unchanged."""


class Usage(Struct, frozen=True, omit_defaults=True):
    """Tokens of one reply, or of several added up."""

    input: int = 0
    """All tokens of the prompt, including cached ones."""
    output: int = 0
    cached: int = 0
    """Tokens of `input` that were read from the provider's cache."""
    written: int = 0
    """Tokens of `input` that were written to the provider's cache."""
    reasoning: int = 0
    """Tokens of `output` spent on reasoning."""

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.input + other.input,
            self.output + other.output,
            self.cached + other.cached,
            self.written + other.written,
            self.reasoning + other.reasoning,
        )

    def __sub__(self, other: "Usage") -> "Usage":
        """What was added since `other`; nothing is ever taken away."""
        return Usage(
            max(0, self.input - other.input),
            max(0, self.output - other.output),
            max(0, self.cached - other.cached),
            max(0, self.written - other.written),
            max(0, self.reasoning - other.reasoning),
        )


class Prices(Struct, frozen=True):
    """Dollars per million tokens."""

    input: float
    output: float
    cached: float | None = None
    """Reading from the cache; as `input` when not given."""
    written: float | None = None
    """Writing to the cache; as `input` when not given."""


def cost(usage: Usage, prices: Prices) -> float:
    """The cost of these tokens in dollars."""
    plain = max(0, usage.input - usage.cached - usage.written)
    cached = prices.input if prices.cached is None else prices.cached
    written = prices.input if prices.written is None else prices.written
    total = plain * prices.input + usage.cached * cached + usage.written * written + usage.output * prices.output
    return total / 1_000_000


_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_CALLS = 128
"""The most calls in one reply."""


def call_id(saw: int, index: int) -> str:
    """A call's id: unique in its session, and nine letters and digits, as the strictest provider requires."""
    if index >= _CALLS:
        raise Refused(f"the model asked for more than {_CALLS} calls in one reply")
    number, text = saw * _CALLS + index, ""
    while number:
        number, digit = divmod(number, len(_DIGITS))
        text = _DIGITS[digit] + text
    return "c" + text.rjust(8, "0")


class Replay(Enum):
    """Whether a call may run a second time. Declared by each tool."""

    SAFE = "safe"
    NEVER = "never"


class ModelTraits(Struct, frozen=True):
    name: str
    """The full name, e.g. `anthropic:claude-sonnet-5`."""
    wire: str
    window: int = 0
    """Size of the context window in tokens; 0 when unknown."""
    images: bool = True
    prices: Prices | None = None


REMOTE = "remote"
"""The runtime that forwards turns to another agent. As the default it is the only one: nothing runs here then."""


def runtime_name(settings: Mapping[str, str], default: str) -> str:
    """The runtime of a session with these settings."""
    return default if default == REMOTE else settings.get("runtime") or default


class RuntimeTraits(Struct, frozen=True):
    name: str
    steers: bool
    """Whether an input that arrives during a turn can reach it."""
    resumes: bool = True
    """Whether a turn continues after a crash. Otherwise it ends as failed and says so."""
    bounded: bool = True
    """Whether our limits on steps and spending apply to its turns. Otherwise it has its own."""
    takes_client_tools: bool = True
    """Whether its turns can use tools of the client that sent an input."""


class ToolSpec(Struct, frozen=True):
    """A tool as a model sees it."""

    name: str
    description: str
    schema: dict[str, object]
    """JSON schema of its arguments: always an object."""
    replay: Replay = Replay.SAFE
