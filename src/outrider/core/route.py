"""Where late words go. A tool that would promise "I will tell you" asks here first."""

from collections.abc import Mapping

from msgspec import Struct

from outrider.core.traits import ChannelTraits, Later


class Route(Struct, frozen=True):
    """Whether words can reach an address later, and what to say when they cannot."""

    can_tell: bool
    why: str = ""


def channel_of(address: str) -> str:
    """The channel an address belongs to: what stands before its colon."""
    return address.partition(":")[0]


def route(address: str, channels: Mapping[str, ChannelTraits]) -> Route:
    """Whether this address can be told something after the turn is over."""
    channel = channel_of(address)
    if not channel:
        return Route(False, "this turn answers to nobody who could be told later")
    traits = channels.get(channel)
    if traits is None:
        return Route(False, f"nothing is known of the channel {channel!r}")
    if traits.later is Later.NONE:
        return Route(False, "nothing can be said here after this reply")
    return Route(True)
