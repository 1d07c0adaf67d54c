"""Where late words go. A tool that would promise "I will tell you" asks here first."""

from collections.abc import Mapping
from enum import Enum

from msgspec import Struct


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


class Deliverability(Struct, frozen=True):
    """Whether words can reach an address later, and what to say when they cannot."""

    can_deliver: bool
    why: str = ""


def channel_of(address: str) -> str:
    """The channel an address belongs to: what stands before its colon."""
    return address.partition(":")[0]


def check_delivery(address: str, channels: Mapping[str, ChannelTraits]) -> Deliverability:
    """Whether this address can be told something after the turn is over."""
    channel = channel_of(address)
    if not channel:
        return Deliverability(False, "this turn answers to nobody who could be told later")
    traits = channels.get(channel)
    if traits is None:
        return Deliverability(False, f"nothing is known of the channel {channel!r}")
    if traits.delivery is DeliveryMode.NONE:
        return Deliverability(False, "nothing can be said here after this reply")
    return Deliverability(True)
