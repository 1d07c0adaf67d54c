"""A turn as a response: its place in a journal, and the object it is on the wire. Pure."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from outrider.app.addresses import RESPONSES
from outrider.channels.http.openai.model_names import reported_model
from outrider.channels.http.openai.turn_output import TurnOutput, encode_call_id, turn_error
from outrider.core.delivery import channel_of
from outrider.core.events import Entry, Input, Reply, Result
from outrider.core.plan import Bounds, State, fold
from outrider.core.types import Call, Usage

_ID = re.compile(r"resp_([0-9a-f]{32})_([0-9]{1,15})", re.ASCII)
BACKGROUND_SUFFIX = "/background"
"""How the address of an input ends whose response is to come back for."""
_REASONS = {"length": "max_output_tokens", "content_filter": "content_filter"}


class ResponseAnchor(Struct, frozen=True):
    """Where a response is asked for in a journal: its input, or the last result it goes on from."""

    seq: int
    address: str


def response_id(session: str, seq: int) -> str:
    """It leads back to the session. No secret: whoever asks must be the session's person."""
    return f"resp_{session}_{seq}"


def parse_response_id(id: str) -> tuple[str, int] | None:
    """`(session, seq)`, or None when it is not of ours."""
    found = _ID.fullmatch(id)
    return (found[1], int(found[2])) if found else None


def response_anchors(journal: Sequence[Entry]) -> list[ResponseAnchor]:
    """Where something was asked for, in order. A past that came along belongs to the input it came with."""
    found: dict[str, ResponseAnchor] = {}
    state = State()
    for entry in journal:
        body = entry.body
        key = ""
        if isinstance(body, Input) and body.source == "person":
            key = f"input {body.address or entry.seq}"
        elif isinstance(body, Result) and not body.failed and _is_client_call(state, body.call):
            key = f"results {state.saw}"
        state = fold((entry,), state)
        if key:
            found.pop(key, None)
            found[key] = ResponseAnchor(entry.seq, state.address)
    return list(found.values())


def _is_client_call(state: State, call: str) -> bool:
    return any(one.id == call and one.tool in state.client_tools for one in state.calls)


class ResponseBuilder(Struct, frozen=True):
    """One response: what of it never changes."""

    session: str
    entry: Entry
    state: State
    """As of that entry."""
    bounds: Bounds

    @property
    def id(self) -> str:
        return response_id(self.session, self.entry.seq)

    def turn_output(self, *, is_live: bool = False) -> TurnOutput:
        return TurnOutput(self.entry.seq, self.state, self.bounds, is_live=is_live)

    def render(self, status: str, **more: Any) -> dict[str, Any]:
        settings = self.state.settings
        tools = [
            {
                "type": "function",
                "name": spec.name,
                "description": spec.description,
                "parameters": spec.schema,
                "strict": False,
            }
            for spec in self.state.client_tools.values()
        ]
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.entry.at // 1000,
            "background": self.state.address.endswith(BACKGROUND_SUFFIX)
            if isinstance(self.entry.body, Input)
            else None,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": settings.get("instructions") or None,
            "metadata": {},
            "model": reported_model(settings),
            "output": [],
            "parallel_tool_calls": True,
            "store": channel_of(self.state.address) == RESPONSES,
            "tool_choice": "auto",
            "tools": tools,
            "usage": None,
            **more,
        }

    def render_current(self, progress: TurnOutput, *, is_begun: bool = True, void: int = 0) -> dict[str, Any]:
        """The response as it is after these entries; in a stream, after so many messages that were taken back."""
        if not progress.is_over:
            more = {"output": [self.render_message(progress.text, "in_progress")]} if progress.text else {}
            return self.render("in_progress" if is_begun else "queued", **more)
        status, more = _status_of(progress)
        output = [self.render_message("", "incomplete", nth) for nth in range(void)]
        output += [self.render_message(progress.text, _item_status(status), void)] if progress.text else []
        output += [self.render_call(call) for call in progress.calls]
        return self.render(status, output=output, usage=_usage(progress.usage), **more)

    def render_message(self, text: str, status: str, nth: int = 0) -> dict[str, Any]:
        content = [text_part(text)] if text else []
        return {
            "id": self.message_id(nth),
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": content,
        }

    def message_id(self, nth: int = 0) -> str:
        """The id of the message; of the n-th, where a stream had to take back those before."""
        return f"msg_{self.session}_{self.entry.seq}" + (f"_{nth}" if nth else "")

    def input_items(self, journal: Sequence[Entry]) -> list[dict[str, Any]]:
        """What was handed in: its words, after the results that came with them. Pictures are not told again."""
        seq, items = self.entry.seq, list[dict[str, Any]]()
        tools = {call.id: call.tool for one in journal if isinstance(one.body, Reply) for call in one.body.calls}
        if isinstance(body := self.entry.body, Input):
            content = [{"type": "input_text", "text": body.text}]
            items.append({"id": f"msg_{self.session}_{seq}_in", "type": "message", "role": "user", "content": content})
            seq -= 1
        while seq and isinstance(body := journal[seq - 1].body, Result):
            if not body.failed and tools.get(body.call) in self.state.client_tools:
                id, call = f"fco_{self.session}_{body.call}", encode_call_id(self.session, body.call)
                items.insert(0, {"id": id, "type": "function_call_output", "call_id": call, "output": body.text})
            seq -= 1
        return items

    def render_call(self, call: Call) -> dict[str, Any]:
        return {
            "id": f"fc_{self.session}_{call.id}",
            "type": "function_call",
            "status": "completed",
            "call_id": encode_call_id(self.session, call.id),
            "name": call.tool,
            "arguments": call.broken or msgspec.json.encode(call.args).decode(),
        }


def text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _item_status(status: str) -> str:
    return "completed" if status == "completed" else "incomplete"


def _status_of(progress: TurnOutput) -> tuple[str, dict[str, Any]]:
    ended = progress.ended
    if ended and ended.outcome == "interrupted":
        return "cancelled", {}
    if ended and ended.outcome != "done":
        return "failed", {"error": {"type": "server_error", "code": "server_error", "message": str(turn_error(ended))}}
    if reason := _REASONS.get(progress.finish_reason):
        return "incomplete", {"incomplete_details": {"reason": reason}}
    return "completed", {}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.input,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": usage.written},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.input + usage.output,
    }
