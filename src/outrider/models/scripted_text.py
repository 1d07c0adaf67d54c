"""How the models that ship in the box cut their words into deltas and guess at tokens."""

import re
from collections.abc import Iterable, Sequence

import msgspec

from outrider.core.compact import message_size
from outrider.core.parts import Usage
from outrider.core.prompt import Prompt

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
