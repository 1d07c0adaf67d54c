"""A prompt as a Messages request: roles alternate, no text is empty, the cache is marked. Pure."""

import re
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from msgspec import Raw

from outrider.config.choice import ModelChoice
from outrider.core.events import Result
from outrider.core.parts import Image, Reasoning
from outrider.core.ports import Blobs
from outrider.core.prompt import AssistantMessage, Message, Prompt, ToolMessage, UserMessage
from outrider.core.traits import ToolSpec
from outrider.models.rendering import (
    CONTINUE,
    IMAGE_UNAVAILABLE,
    NO_OUTPUT,
    SESSION_START,
    RenderCache,
    call_arguments,
    encode,
    encode_image,
    is_blank,
    tool_name,
    wire_id,
)
from outrider.models.wire import ReasoningReplay

WIRE = "anthropic"
_CACHE_MARK = b',"cache_control":{"type":"ephemeral"}}'
_BEFORE_4_6 = re.compile(r"claude-(3|(opus|sonnet)-4([-.][015]\b|-20|@|$)|haiku-4)")
"""Claude before 4.6."""
_BUDGETS = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 16_384, "xhigh": 32_000, "max": 32_000}
_LONG_OUTPUT = re.compile(r"claude-((opus|sonnet|haiku)-(4[-.][5-9]|[5-9])|fable|mythos)")
_MAX_TOKENS = 32_000
_MAX_TOKENS_ELSEWHERE = 8192


class MessageBlocks(NamedTuple):
    """One message as content blocks joined by commas."""

    role: bytes
    thinking: bytes
    blocks: bytes

    @property
    def size(self) -> int:
        return len(self.thinking) + len(self.blocks)


class MessagesRenderer:
    """Renders prompts for one model."""

    def __init__(self, choice: ModelChoice, blobs: Blobs) -> None:
        self._choice = choice
        self._blobs = blobs
        self._cache = RenderCache(self._piece, lambda piece: piece.size)
        self._tools: tuple[tuple[ToolSpec, ...], bytes] = ((), b"")

    def render(self, prompt: Prompt, past: ReasoningReplay) -> bytes:
        thinking, longest = self._thinking(prompt.messages, past)
        fields = [
            b'"model":' + encode(self._choice.model),
            b'"max_tokens":%d' % longest,
            b'"stream":true',
        ]
        if prompt.tools:
            listed = self._tool_list(prompt.tools)
            fields.append(b'"tools":[' + (_with_cache_mark(listed) if is_blank(prompt.system) else listed) + b"]")
        if not is_blank(prompt.system):
            fields.append(b'"system":[' + _with_cache_mark(encode({"type": "text", "text": prompt.system})) + b"]")
        fields.append(b'"messages":[' + b",".join(self._messages(prompt, past)) + b"]")
        fields += (b'"%s":' % name.encode() + encode(value) for name, value in thinking.items())
        return b"{" + b",".join(fields) + b"}"

    def _messages(self, prompt: Prompt, past: ReasoningReplay) -> list[bytes]:
        groups = self._groups(prompt.messages, bare=past is ReasoningReplay.NONE)
        if not groups or groups[0][0] != b"user":
            groups.insert(0, (b"user", [_text_block(SESSION_START)]))
        if groups[-1][0] != b"user":
            groups.append((b"user", [_text_block(prompt.tail or CONTINUE)]))
            tail = b""
        else:
            tail = _text_block(prompt.tail) if prompt.tail else b""
        # The cache is looked for at marks, a few blocks back from each: one mark where this prompt ends, and one
        # where the prompt before it ended.
        asked = [index for index, (role, _) in enumerate(groups) if role == b"user"][-2:]
        out: list[bytes] = []
        for index, (role, pieces) in enumerate(groups):
            blocks = b",".join(pieces)
            if index in asked:
                blocks = _with_cache_mark(blocks)
            if tail and index == len(groups) - 1:
                blocks += b"," + tail
            out.append(b'{"role":"' + role + b'","content":[' + blocks + b"]}")
        return out

    def _groups(self, messages: Sequence[Message], *, bare: bool) -> list[tuple[bytes, list[bytes]]]:
        groups: list[tuple[bytes, list[bytes]]] = []
        get = self._cache.get
        before = b""
        for message in messages:
            role, thoughts, blocks = get(message)
            if not blocks:
                continue
            if role != before:
                groups.append((role, []))
                before = role
            if thoughts and not bare:
                groups[-1][1].append(thoughts)
            groups[-1][1].append(blocks)
        return groups

    def _piece(self, message: Message) -> MessageBlocks:
        match message:
            case UserMessage(text=text, images=images):
                return MessageBlocks(b"user", b"", b",".join(encode(block) for block in self._blocks(text, images)))
            case AssistantMessage():
                return MessageBlocks(
                    b"assistant", b",".join(_replayable(message.reasoning)), b",".join(_assistant_blocks(message))
                )
            case ToolMessage(results=results):
                return MessageBlocks(b"user", b"", b",".join(encode(self._result(result)) for result in results))

    def _blocks(self, text: str, images: tuple[Image, ...]) -> list[dict[str, object]]:
        blocks: list[dict[str, object]] = [] if is_blank(text) else [{"type": "text", "text": text}]
        for image in images:
            found = encode_image(image, self._blobs)
            if found:
                source = {"type": "base64", "media_type": found.media_type, "data": found.base64}
                blocks.append({"type": "image", "source": source})
            else:
                blocks.append({"type": "text", "text": IMAGE_UNAVAILABLE})
        return blocks

    def _result(self, result: Result) -> dict[str, object]:
        words = NO_OUTPUT if is_blank(result.text) else result.text
        content = self._blocks(words, result.images) if result.images else words
        block: dict[str, object] = {"type": "tool_result", "tool_use_id": wire_id(result.call), "content": content}
        return block | {"is_error": True} if result.failed else block

    def _thinking(self, messages: Sequence[Message], past: ReasoningReplay) -> tuple[dict[str, object], int]:
        """The fields that set how hard to think, and how long the reply may be with its thinking."""
        effort, model = self._choice.effort, self._choice.model
        usual = _MAX_TOKENS if _LONG_OUTPUT.search(model) else _MAX_TOKENS_ELSEWHERE
        longest = self._choice.max_output_tokens or usual
        loose = {"block_binding": {"prefix_mismatch_behavior": "drop_block"}} if past is ReasoningReplay.LENIENT else {}
        if effort == "none":
            return {"thinking": {"type": "disabled"}}, longest
        if not effort:
            return ({"thinking": {"type": "adaptive"} | loose} if loose else {}), longest
        if "claude" in model and not _BEFORE_4_6.search(model):
            level = "low" if effort == "minimal" else effort
            adaptive = {"type": "adaptive", "display": "summarized"} | loose
            return {"thinking": adaptive, "output_config": {"effort": level}}, longest
        # Early models, and whoever else speaks this wire, think by a budget of tokens.
        if _calls_lack_thinking(messages) or past is ReasoningReplay.NONE:
            return {}, longest
        budget = _BUDGETS.get(effort, _BUDGETS["medium"])
        return {"thinking": {"type": "enabled", "budget_tokens": budget}}, max(longest, budget + 4096)

    def _tool_list(self, tools: tuple[ToolSpec, ...]) -> bytes:
        if self._tools[0] is not tools:
            self._tools = (tools, b",".join(encode(_tool_definition(tool)) for tool in tools))
        return self._tools[1]


def _calls_lack_thinking(messages: Sequence[Message]) -> bool:
    """Whether the last reply made calls without thinking of this wire: budgeted thinking refuses to go on then."""
    last = next((message for message in reversed(messages) if isinstance(message, AssistantMessage)), None)
    return last is not None and bool(last.calls) and not _replayable(last.reasoning)


def _assistant_blocks(message: AssistantMessage) -> list[bytes]:
    blocks = [] if is_blank(message.text) else [_text_block(message.text)]
    for call in message.calls:
        use = {"type": "tool_use", "id": wire_id(call.id), "name": tool_name(call.tool), "input": call_arguments(call)}
        blocks.append(encode(use))
    return blocks


def _replayable(reasoning: tuple[Reasoning, ...]) -> list[bytes]:
    blocks: list[bytes] = []
    for part in reasoning:
        if part.wire != WIRE or not part.opaque:
            continue
        try:
            blocks.append(encode(Raw(encode(msgspec.json.decode(part.opaque, type=dict[str, object])))))
        except msgspec.DecodeError:
            continue
    return blocks


def _text_block(text: str) -> bytes:
    return encode({"type": "text", "text": text})


def _with_cache_mark(blocks: bytes) -> bytes:
    """With a cache mark on the last of these blocks."""
    return blocks[:-1] + _CACHE_MARK


def _tool_definition(tool: ToolSpec) -> dict[str, object]:
    return {"name": tool.name, "description": tool.description, "input_schema": tool.schema}
