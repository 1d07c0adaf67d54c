"""Where people are, and how words reach them there. Every address begins with the name of one of these."""

from collections.abc import Mapping

from outrider.core.traits import ChannelTraits, Later

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
    TERMINAL: ChannelTraits(later=Later.PUSH, answers=True),
    PROMPT: ChannelTraits(later=Later.NONE, answers=True),
    PIPE: ChannelTraits(later=Later.NONE),
    PYTHON: ChannelTraits(later=Later.PULL),
    CHAT: ChannelTraits(later=Later.NONE),
    RESPONSES: ChannelTraits(later=Later.PULL, answers=True),
    SESSIONS: ChannelTraits(later=Later.PULL, answers=True),
    TASK: ChannelTraits(later=Later.NONE),
}
