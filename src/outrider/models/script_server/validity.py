"""What the real providers refuse, so that a client that breaks these rules is told here already."""

from outrider.core.prompt import AssistantMessage, Prompt, ToolMessage


def find_prompt_error(prompt: Prompt, *, in_order: bool) -> str | None:
    """What is wrong with the calls of this prompt: one without a result, or a result without its call.

    `in_order`: the results must stand right after the reply that made the calls.
    """
    if not prompt.messages:
        return "at least one message is required"
    waiting: list[str] = []
    for message in prompt.messages:
        if isinstance(message, ToolMessage):
            found = [result.call for result in message.results]
            if stray := [call for call in found if call not in waiting]:
                return f"no call was made with the id {stray[0]}"
            waiting = [call for call in waiting if call not in found]
        elif in_order and waiting:
            return f"no result follows the call with the id {waiting[0]}"
        if isinstance(message, AssistantMessage):
            waiting += [call.id for call in message.calls]
    return f"no result was given for the call with the id {waiting[0]}" if waiting else None
