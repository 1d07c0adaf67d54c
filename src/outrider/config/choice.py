"""Which model to ask, and where: a name people write, resolved to a wire, an address and a key."""

from msgspec import Struct

from outrider.core.parts import Prices


class Secret:
    """A value that never shows itself: not in `repr`, not in an error, not in a log."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __bool__(self) -> bool:
        return bool(self._value)

    def __repr__(self) -> str:
        return "Secret(…)" if self._value else "Secret()"

    __str__ = __repr__


class ModelChoice(Struct, frozen=True):
    """One model, ready to be opened."""

    name: str
    """As people write it, e.g. `anthropic:claude-sonnet-5`."""
    wire: str
    """`openai-chat`, `openai-responses`, `anthropic`, `practice`, or another wire that a plugin speaks."""
    model: str
    """As its provider calls it."""
    url: str = ""
    """The base URL, without a trailing slash; the wire adds its own path to it."""
    key: Secret = Secret("")
    context_window: int = 0
    """Tokens it can read; 0 when unknown."""
    max_output_tokens: int = 0
    """Tokens one reply may have; 0 for the wire's default."""
    effort: str = ""
    """How hard it should think (`low`, `medium`, `high`), or empty for the provider's default."""
    prices: Prices | None = None
    idle_timeout: float = 120.0
    """Seconds without a byte before the provider counts as silent."""
    attempts: int = 5
    """How often one request is tried."""
