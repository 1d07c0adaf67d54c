"""Delivery after a turn: can this address receive a message later? A tool that promises a notice checks first."""

from collections.abc import Mapping
from enum import Enum

from msgspec import Struct


class DeliveryMode(Enum):
    """How a message reaches an address after the request that caused it has ended."""

    PUSH = "push"
    """Outrider sends at any time (a chat app, the terminal chat)."""
    PULL = "pull"
    """The client comes back and asks for more (the web page, the sessions API)."""
    NONE = "none"
    """Nothing can be delivered once the connection is closed (a pipe, chat completions)."""


class ChannelTraits(Struct, frozen=True, kw_only=True):
    """What a channel can do. Every channel must declare its delivery."""

    delivery: DeliveryMode
    can_answer: bool = False
    """Whether a person there can answer a question."""


class Deliverability(Struct, frozen=True):
    """Whether a message can reach an address later, and why not."""

    can_deliver: bool
    why: str = ""


def channel_of(address: str) -> str:
    """The channel of an address: the part before its colon."""
    return address.partition(":")[0]


def check_delivery(address: str, channels: Mapping[str, ChannelTraits]) -> Deliverability:
    """Whether a message can reach this address after the turn."""
    channel = channel_of(address)
    if not channel:
        return Deliverability(False, "this turn has no address that could be notified later")
    traits = channels.get(channel)
    if traits is None:
        return Deliverability(False, f"the channel {channel!r} is unknown")
    if traits.delivery is DeliveryMode.NONE:
        return Deliverability(False, "nothing can be delivered here after this reply")
    return Deliverability(True)
