"""The practice model's answer to a prompt: the next call, or the words at the end. Pure."""

from collections.abc import Sequence

from outrider.core.compaction import SUMMARISE, outline
from outrider.core.events import Result
from outrider.core.prompt import SUMMARY, AssistantMessage, Message, Prompt, ToolMessage, UserMessage
from outrider.models.practice.doing import do
from outrider.models.practice.notices import parse_notice, parted
from outrider.models.practice.phrases import INTRODUCTION
from outrider.models.practice.recall import Recall
from outrider.models.practice.request import MOST_STEPS, parse_request
from outrider.models.practice.steps import Noticed, Noting, Puzzled, Step, Talking
from outrider.models.scripted_reply import ScriptedCall, ScriptedReply, join_paragraphs

MOST_CALLS = 8
"""Calls that one request may take."""

Done = tuple[ScriptedCall, Result]


def practise(prompt: Prompt) -> ScriptedReply:
    """What the practice model says to this prompt."""
    start = _start(prompt.messages)
    past, present = prompt.messages[:start], prompt.messages[start:]
    if any(isinstance(message, UserMessage) and message.text == SUMMARISE for message in present):
        return ScriptedReply(outline(prompt.messages[:-1]) or "Nothing has been said yet.")
    recall = Recall()
    for wanted, result in _done(past):
        recall.take_in(wanted, result)
    tools = frozenset(tool.name for tool in prompt.tools)
    steps = [step for message in present if isinstance(message, UserMessage) for step in steps_of(message)]
    notices = (parse_notice(step.notice) for step in steps if isinstance(step, Noticed))
    recall.ended |= {notice.task for notice in notices if notice and notice.is_end}
    said = answer(steps, recall, tools, _done(present))
    if isinstance(said, ScriptedCall):
        return ScriptedReply(calls=(said,))
    is_first = not any(isinstance(message, AssistantMessage) and not message.calls for message in past)
    introduces = any(isinstance(step, Puzzled) or step in _INTRODUCING for step in steps)
    return ScriptedReply(join_paragraphs([said, INTRODUCTION if is_first and not introduces else ""]))


_INTRODUCING = (Talking("hello"), Talking("help"), Talking("self"))


def steps_of(message: UserMessage) -> Sequence[Step]:
    """What this message asks for. Nothing is asked for by the summary of an earlier part."""
    if message.text.startswith(SUMMARY):
        return []
    if message.source == "task":
        return [Noticed(message.text)]
    notices, words = parted(message.text)
    noticed = [Noticed(notice) for notice in notices]
    if words == "" != message.text.strip():
        return noticed
    steps = [*noticed, *parse_request(words)]
    return [*steps, Noting("I cannot look at pictures.")] if message.images else steps


def answer(steps: Sequence[Step], recall: Recall, tools: frozenset[str], done: Sequence[Done]) -> ScriptedCall | str:
    """The next call these steps need after what is done, or what to say when they need none."""
    left, said, calls = list(done), list[str](), 0
    for step in steps[:MOST_STEPS]:
        doing = do(step, recall, tools)
        try:
            wanted = next(doing)
            while True:
                calls += 1
                if calls > MOST_CALLS:
                    doing.close()
                    said.append(f"I stop here: one request may take at most {MOST_CALLS} calls.")
                    return join_paragraphs(said)
                found = next((n for n, (made, _) in enumerate(left) if _same(made, wanted)), None)
                if found is None:
                    return wanted
                result = left.pop(found)[1]
                recall.take_in(wanted, result)
                wanted = doing.send(result)
        except StopIteration as end:
            said.append(str(end.value))
    if len(steps) > MOST_STEPS:
        said.append(f"I stop here: one request may have at most {MOST_STEPS} steps.")
    return join_paragraphs(said) or "There is nothing for me to do."


def _same(made: ScriptedCall, wanted: ScriptedCall) -> bool:
    return made.tool == wanted.tool and made.args == wanted.args


def _start(messages: Sequence[Message]) -> int:
    """Where the present turn begins: after the last reply that made no calls."""
    finals = (
        n + 1 for n, message in enumerate(messages) if isinstance(message, AssistantMessage) and not message.calls
    )
    return max(finals, default=0)


def _done(messages: Sequence[Message]) -> list[Done]:
    """The calls that were made, each with its result."""
    results = {r.call: r for message in messages if isinstance(message, ToolMessage) for r in message.results}
    calls = (call for message in messages if isinstance(message, AssistantMessage) for call in message.calls)
    return [(ScriptedCall(call.tool, call.args), results[call.id]) for call in calls if call.id in results]
