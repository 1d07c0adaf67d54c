"""The channels and what they can deliver. Every address begins with the name of a channel."""

from collections.abc import Mapping

from outrider.core.delivery import ChannelTraits, DeliveryMode

TERMINAL = "terminal"
"""The chat: a person reads it, now or when it is next opened."""
PROMPT = "prompt"
"""One command with a person at the terminal, who can answer questions until it ends."""
PIPE = "pipe"
"""One command without a terminal."""
PYTHON = "python"
"""A Python program, which can read the session later."""
CHAT = "chat"
"""A chat completion: the connection is the channel."""
RESPONSES = "responses"
"""A stored response, which its client can fetch later."""
SESSIONS = "sessions"
"""The sessions API, whose client reads from a cursor."""
REQUEST = "request"
"""A message to the sessions API whose sender reads its turn, answers its questions, and does not come back later."""
TASK = "task"
"""A child session: its last reply is its result, and no person can answer it."""
CHANNELS: Mapping[str, ChannelTraits] = {
    TERMINAL: ChannelTraits(delivery=DeliveryMode.PUSH, can_answer=True),
    PROMPT: ChannelTraits(delivery=DeliveryMode.NONE, can_answer=True),
    PIPE: ChannelTraits(delivery=DeliveryMode.NONE),
    PYTHON: ChannelTraits(delivery=DeliveryMode.PULL),
    CHAT: ChannelTraits(delivery=DeliveryMode.NONE),
    RESPONSES: ChannelTraits(delivery=DeliveryMode.PULL, can_answer=True),
    SESSIONS: ChannelTraits(delivery=DeliveryMode.PULL, can_answer=True),
    REQUEST: ChannelTraits(delivery=DeliveryMode.NONE, can_answer=True),
    TASK: ChannelTraits(delivery=DeliveryMode.NONE),
}
