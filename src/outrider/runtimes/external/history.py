"""The part of a session that another program has not seen, in words it can be given. Pure."""

from collections.abc import Sequence

import msgspec

from outrider.core.prompt import AssistantMessage, Message, ToolMessage, UserMessage
from outrider.runtimes.external.recorder import clip_middle

MAX_HISTORY = 60_000
"""Characters of the past that are told; of more, the beginning and the end."""
_MAX_MESSAGE = 4_000
_HEAD = "[What was said and done in this session before you took over. It is context, not a request:]"
_FOOT = "[End of what came before.]"


def render_history(messages: Sequence[Message]) -> str:
    """The past as one text; empty when there is none."""
    lines = [line for message in messages for line in _render_message(message)]
    if not lines:
        return ""
    return "\n".join((_HEAD, clip_middle("\n".join(lines), MAX_HISTORY), _FOOT))


def _render_message(message: Message) -> list[str]:
    match message:
        case UserMessage(text=text, source=source):
            return [f"{'Person' if source == 'person' else 'Notice'}: {clip_middle(text, _MAX_MESSAGE)}"]
        case AssistantMessage(text=text, calls=calls):
            said = [f"Agent: {clip_middle(text, _MAX_MESSAGE)}"] if text else []
            return said + [f"Agent called {call.tool}: {_args(call.args)}" for call in calls]
        case ToolMessage(results=results):
            return [
                f"Result{' (failed)' if one.failed else ''}: {clip_middle(one.text, _MAX_MESSAGE)}" for one in results
            ]


def _args(args: dict[str, object]) -> str:
    return clip_middle(msgspec.json.encode(args).decode(), _MAX_MESSAGE)
