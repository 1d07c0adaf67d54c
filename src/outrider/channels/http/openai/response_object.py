"""The response object of `/v1/responses`: where it is in a journal, and its JSON."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from outrider.app.addresses import RESPONSES
from outrider.app.agent import Agent
from outrider.channels.http.endpoints import find_session
from outrider.channels.http.errors import HttpError
from outrider.channels.http.openai.models import reported_model
from outrider.channels.http.openai.turn_output import TurnOutput, bounds_of, encode_call_id, turn_error
from outrider.core.delivery import channel_of
from outrider.core.events import Entry, Input, Reply, Result
from outrider.core.plan import Bounds, State, fold
from outrider.core.store_port import Session
from outrider.core.types import Call, Usage

_ID = re.compile(r"resp_([0-9a-f]{32})_([0-9]{1,15})", re.ASCII)
BACKGROUND_SUFFIX = "/background"
"""The end of the address of an input whose response runs in the background."""
_REASONS = {"length": "max_output_tokens", "content_filter": "content_filter"}


class ResponseAnchor(Struct, frozen=True):
    """The entry of a journal that a response begins at: its input, or the last tool output it continues from."""

    seq: int
    address: str


def response_id(session: str, seq: int) -> str:
    """An id that includes the session's. It is no secret: only the session's person can use it."""
    return f"resp_{session}_{seq}"


def parse_response_id(id: str) -> tuple[str, int] | None:
    """`(session, seq)`, or None for an id that is not ours."""
    match = _ID.fullmatch(id)
    return (match[1], int(match[2])) if match else None


def response_anchors(journal: Sequence[Entry]) -> list[ResponseAnchor]:
    """The anchors of a journal, in order. A history belongs to the input that it came with."""
    anchors: dict[str, ResponseAnchor] = {}
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
            anchors.pop(key, None)
            anchors[key] = ResponseAnchor(entry.seq, state.address)
    return list(anchors.values())


def _is_client_call(state: State, call: str) -> bool:
    return any(one.id == call and one.tool in state.client_tools for one in state.calls)


class ResponseBuilder(Struct, frozen=True):
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

    def render_current(self, output: TurnOutput, *, has_started: bool = True, retracted: int = 0) -> dict[str, Any]:
        """The response with this output; in a stream, after this many messages that were retracted."""
        if not output.is_over:
            more = {"output": [self.render_message(output.text, "in_progress")]} if output.text else {}
            return self.render("in_progress" if has_started else "queued", **more)
        status, more = _status_of(output)
        items = [self.render_message("", "incomplete", nth) for nth in range(retracted)]
        if output.text:
            item_status = "completed" if status == "completed" else "incomplete"
            items.append(self.render_message(output.text, item_status, retracted))
        items += [self.render_call(call) for call in output.calls]
        return self.render(status, output=items, usage=_usage(output.usage), **more)

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
        """The id of the message; of the n-th, after a stream retracted those before it."""
        return f"msg_{self.session}_{self.entry.seq}" + (f"_{nth}" if nth else "")

    def input_items(self, journal: Sequence[Entry]) -> list[dict[str, Any]]:
        """What the request added: its message, after the tool outputs that came with it. Images are left out."""
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


def _status_of(output: TurnOutput) -> tuple[str, dict[str, Any]]:
    ended = output.ended
    if ended and ended.outcome == "interrupted":
        return "cancelled", {}
    if ended and ended.outcome != "done":
        return "failed", {"error": {"type": "server_error", "code": "server_error", "message": str(turn_error(ended))}}
    if reason := _REASONS.get(output.finish_reason):
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


class StoredResponse(Struct, frozen=True):
    """A response with the journal that it is in."""

    agent: Agent
    session: Session
    journal: Sequence[Entry]
    anchors: Sequence[ResponseAnchor]
    builder: ResponseBuilder

    @property
    def seq(self) -> int:
        return self.builder.entry.seq

    @property
    def is_open(self) -> bool:
        return self.render()["status"] in ("queued", "in_progress")

    def render(self) -> dict[str, Any]:
        output = self.builder.turn_output()
        for entry in self.journal[self.seq :]:
            output.add(entry)
            if output.is_over:
                break
        return self.builder.render_current(output, has_started=fold(self.journal).is_open)


def stored_response(agent: Agent, session: Session, journal: Sequence[Entry], seq: int) -> StoredResponse:
    """The response that begins at this entry."""
    builder = ResponseBuilder(session.id, journal[seq - 1], fold(journal[:seq]), bounds_of(agent))
    return StoredResponse(agent, session, journal, response_anchors(journal), builder)


async def find_response(agent: Agent, id: str) -> StoredResponse:
    """The response of this id. Raises 404 when there is none, it was not stored, or it is another person's."""
    missing = HttpError(404, f"there is no response {id[:100]!r}", "not_found")
    name, seq = parse_response_id(id) or ("", 0)
    if not name:
        raise missing
    try:
        session = await find_session(agent, name)
    except HttpError:
        raise missing from None
    journal = await agent.journal(session)
    if session.id != name or not 0 < seq <= len(journal):
        raise missing
    response = stored_response(agent, session, journal, seq)
    if not any(anchor.seq == seq and channel_of(anchor.address) == RESPONSES for anchor in response.anchors):
        raise missing
    return response
