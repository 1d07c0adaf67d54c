"""Where people are, and how words reach them there. Every address begins with the name of one of these."""

from collections.abc import Mapping

from outrider.core.delivery import ChannelTraits, DeliveryMode

TERMINAL = "terminal"
"""The chat: someone sits in front of it, now or when it is next opened."""
PROMPT = "prompt"
"""One command, with a person at the terminal who can be asked until it is done."""
PIPE = "pipe"
"""One command, with nobody there."""
PYTHON = "python"
"""A program of the person's, which can come back and read on."""
CHAT = "chat"
"""A chat completion: the connection is the channel."""
RESPONSES = "responses"
"""A stored response, which its client can come back for."""
SESSIONS = "sessions"
"""The sessions API, whose client keeps a cursor."""
TASK = "task"
"""A child session: its last words are its result, and nobody can be asked."""
CHANNELS: Mapping[str, ChannelTraits] = {
    TERMINAL: ChannelTraits(delivery=DeliveryMode.PUSH, can_answer=True),
    PROMPT: ChannelTraits(delivery=DeliveryMode.NONE, can_answer=True),
    PIPE: ChannelTraits(delivery=DeliveryMode.NONE),
    PYTHON: ChannelTraits(delivery=DeliveryMode.PULL),
    CHAT: ChannelTraits(delivery=DeliveryMode.NONE),
    RESPONSES: ChannelTraits(delivery=DeliveryMode.PULL, can_answer=True),
    SESSIONS: ChannelTraits(delivery=DeliveryMode.PULL, can_answer=True),
    TASK: ChannelTraits(delivery=DeliveryMode.NONE),
}
