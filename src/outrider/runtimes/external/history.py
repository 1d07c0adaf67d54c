"""Text rendering of the part of a session that an external program has not seen. Pure."""

from collections.abc import Sequence

import msgspec

from outrider.core.prompt import AssistantMessage, Message, ToolMessage, UserMessage
from outrider.runtimes.external.recorder import clip_middle

MAX_HISTORY = 60_000
"""Characters of the whole text; of a longer one, the beginning and the end."""
_MAX_MESSAGE = 4_000
_HEAD = "[What was said and done in this session before you took over. It is context, not a request:]"
_FOOT = "[End of what came before.]"


def render_history(messages: Sequence[Message]) -> str:
    """The messages as one text; empty when there are none."""
    lines = [line for message in messages for line in _render_message(message)]
    if not lines:
        return ""
    return "\n".join((_HEAD, clip_middle("\n".join(lines), MAX_HISTORY), _FOOT))


def _render_message(message: Message) -> list[str]:
    match message:
        case UserMessage(text=text, source=source):
            return [f"{'Person' if source == 'person' else 'Notice'}: {clip_middle(text, _MAX_MESSAGE)}"]
        case AssistantMessage(text=text, calls=calls):
            lines = [f"Agent: {clip_middle(text, _MAX_MESSAGE)}"] if text else []
            for call in calls:
                args = msgspec.json.encode(call.args).decode()
                lines.append(f"Agent called {call.tool}: {clip_middle(args, _MAX_MESSAGE)}")
            return lines
        case ToolMessage(results=results):
            return [
                f"Result{' (failed)' if result.failed else ''}: {clip_middle(result.text, _MAX_MESSAGE)}"
                for result in results
            ]
