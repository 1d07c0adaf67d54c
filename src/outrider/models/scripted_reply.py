"""How the models that ship in the box cut their words into deltas and guess at tokens."""

import re
from collections.abc import Iterable, Sequence

import anyio
import msgspec
from msgspec import Struct

from outrider.core.compaction import message_size
from outrider.core.events import Delta, Reply
from outrider.core.ports import Emit
from outrider.core.prompt import Prompt
from outrider.core.types import Call, Reasoning, Usage, call_id

_WORD = re.compile(r"\S+\s*|\s+")


def split_words(text: str) -> list[str]:
    """The text word by word, each with the white space after it; joined they are the text again."""
    return _WORD.findall(text)


def pieces(text: str, chunk: int = 0) -> list[str]:
    """The text in pieces of `chunk` characters, or word by word."""
    return [text[at : at + chunk] for at in range(0, len(text), chunk)] if chunk > 0 else split_words(text)


def estimate_tokens(characters: int) -> int:
    """A rough count: four characters are about one token."""
    return -(-characters // 4)


def estimate_prompt_tokens(prompt: Prompt) -> int:
    """Roughly how many tokens this prompt takes."""
    tools = sum(len(tool.name) + len(tool.description) + len(to_json(tool.schema)) for tool in prompt.tools)
    return estimate_tokens(
        len(prompt.system) + len(prompt.tail) + tools + sum(message_size(message) for message in prompt.messages)
    )


def estimate_usage(prompt: Prompt, written: Iterable[str], reasoning: str = "") -> Usage:
    """What a reply of these texts would have cost a real model, roughly."""
    thought = estimate_tokens(len(reasoning))
    said = estimate_tokens(sum(len(text) for text in written))
    return Usage(input=estimate_prompt_tokens(prompt), output=said + thought, reasoning=thought)


def to_json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def join_paragraphs(texts: Sequence[str]) -> str:
    """Paragraphs, the empty ones left out."""
    return "\n\n".join(text for text in texts if text)


class ScriptedCall(Struct, frozen=True):
    """A call a line makes."""

    tool: str
    args: dict[str, object] = {}
    raw: str | None = None
    """Sent in place of `args`, as it is: broken JSON, say, or the input of a custom tool."""
    namespace: str = ""
    """Where an API groups its tools, the group."""
    custom: bool = False
    """Whether `raw` is the free-form input of a custom tool, where an API has those."""

    def arguments(self) -> str:
        return to_json(self.args) if self.raw is None else self.raw


class ScriptedReply(Struct, frozen=True):
    """One reply of the script."""

    text: str = ""
    calls: tuple[ScriptedCall, ...] = ()
    reasoning: str = ""
    usage: Usage | None = None
    """A rough count of characters when not given."""
    cut: str = ""
    """Why the reply is ended early, e.g. `length`."""
    delay: float = 0.0
    """Seconds before each piece."""
    chunk: int = 0
    """Characters in a piece; 0 for word by word."""


async def stream_reply(line: ScriptedReply, prompt: Prompt, emit: Emit, model: str) -> Reply:
    """Say this line in answer to this prompt, piece by piece."""
    for kind, text in (("reasoning", line.reasoning), ("text", line.text)):
        for piece in pieces(text, line.chunk):
            if line.delay:
                await anyio.sleep(line.delay)
            emit(Delta(piece, "reasoning" if kind == "reasoning" else "text"))
    for wanted in line.calls:
        emit(Delta(wanted.tool, "call"))
    written = [line.text, *(wanted.tool + wanted.arguments() for wanted in line.calls)]
    return Reply(
        text=line.text,
        saw=prompt.saw,
        calls=tuple(
            Call(call_id(prompt.saw, n), wanted.tool, wanted.args, wanted.raw or "")
            for n, wanted in enumerate(line.calls)
        ),
        reasoning=(Reasoning(line.reasoning, "scripted"),) if line.reasoning else (),
        model=model,
        usage=line.usage or estimate_usage(prompt, written, line.reasoning),
        cut=line.cut,
    )
