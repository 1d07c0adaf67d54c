"""What things can do, declared as data."""

from enum import Enum

from msgspec import Struct

from outrider.core.parts import Prices


class Replay(Enum):
    """Whether running a call a second time is harmless. Declared by each tool."""

    SAFE = "safe"
    NEVER = "never"


class DeliveryMode(Enum):
    """How words reach someone after the request that prompted them is gone."""

    PUSH = "push"
    """We hold the cursor and may send at any time (a chat app, the terminal chat)."""
    PULL = "pull"
    """The client holds the cursor and comes back for more (the web page, the sessions API)."""
    NONE = "none"
    """The connection is the channel; when it closes, nothing can be said (a pipe, chat completions)."""


class ChannelTraits(Struct, frozen=True, kw_only=True):
    """What a channel can do. How words reach people later has no default: every channel must say."""

    delivery: DeliveryMode
    can_answer: bool = False
    """Whether someone there can be asked a question and answer it."""


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
