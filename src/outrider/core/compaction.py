"""Compaction: which part of a session to replace by a summary when it outgrows the model's window."""

from collections.abc import Sequence

from outrider.core.prompt import AssistantMessage, Message, ToolMessage, Transcript, UserMessage
from outrider.core.text import clip, head_and_tail

SUMMARISE = (
    "Summarise the session so far for yourself, so that the work can continue without the earlier messages. "
    "Keep: what the person wants and has decided, the facts you found, files and their state, "
    "what was done, and what is still open. "
    "Leave out pleasantries. Write plain text, at most 600 words."
)


def message_size(message: Message) -> int:
    """Roughly how many characters a message takes in a prompt."""
    match message:
        case UserMessage(text=text, images=images):
            return len(text) + 4_000 * len(images)
        case AssistantMessage(text=text, calls=calls, reasoning=reasoning):
            return (
                len(text)
                + sum(len(str(call.args)) + len(call.tool) for call in calls)
                + sum(len(part.text) + len(part.opaque) for part in reasoning)
            )
        case ToolMessage(results=results):
            return sum(len(result.text) + 4_000 * len(result.images) for result in results)


def choose_cut(transcript: Transcript, keep: float = 0.25) -> int | None:
    """The entry up to which to compact so that about this part of the prompt stays; None when nothing can go."""
    cuts = transcript.cuts()
    if not cuts:
        return None
    sizes = [message_size(message) for message in transcript.messages()]
    target = sum(sizes) * (1 - keep)
    return next((upto for upto, index in cuts if sum(sizes[:index]) >= target), cuts[-1][0])


def outline(messages: Sequence[Message], max_length: int = 12_000) -> str:
    """A summary made without a model, for when even the request for one does not fit."""
    lines: list[str] = []
    for message in messages:
        match message:
            case UserMessage(text=text):
                lines.append(f"- person: {clip(text, 300)}")
            case AssistantMessage(text=text, calls=calls):
                tools = ", ".join(call.tool for call in calls)
                lines.append(f"- you: {clip(text, 300)}" + (f" (called {tools})" if tools else ""))
            case ToolMessage():
                pass
    return head_and_tail("\n".join(lines), max_length // 2, max_length // 2)
