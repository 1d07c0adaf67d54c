"""Where late words go. A tool that would promise "I will tell you" asks here first."""

from collections.abc import Mapping

from msgspec import Struct

from outrider.core.traits import ChannelTraits, DeliveryMode


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
