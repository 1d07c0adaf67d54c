"""`/v1/chat/completions`: a turn for any OpenAI client. The connection is the channel; closing it stops nothing."""

import secrets
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from outrider.app.addresses import CHAT
from outrider.app.agent import Agent
from outrider.app.runtimes import changed_settings
from outrider.channels.http.endpoints import EndpointSpec, log_failure, route
from outrider.channels.http.errors import HttpError, error_body, request_id
from outrider.channels.http.inputs import InputRequest, accept_input, agent_of, idempotency_key
from outrider.channels.http.openai.conversation import (
    ChatRequest,
    ParsedConversation,
    ignored_parameters_header,
    parse_chat_request,
)
from outrider.channels.http.openai.history import journal_from_history
from outrider.channels.http.openai.model_names import check_client_tools, reported_model, settings_for_model
from outrider.channels.http.openai.resolve_session import ResolvedSession, digest, resolve_chat_session, session_header
from outrider.channels.http.openai.turn_output import TurnOutput, bounds_of, encode_call_id, parse_call_id, turn_error
from outrider.channels.http.sse import EventStreamResponse, format_event
from outrider.core.errors import Refused, Unavailable
from outrider.core.events import Body, Changed, Entry, Event, Result
from outrider.core.types import Call, Image, Usage
from outrider.system.images import media_type

RESTART_COMMENT = ": the words above were taken back; the reply begins anew\n\n"


class CompletionRenderer(Struct, frozen=True):
    """What every part of one completion repeats."""

    id: str
    created: int
    model: str
    session: str
    wants_usage: bool = False

    def chunk(self, delta: dict[str, Any], finish: str | None = None) -> bytes:
        choices = [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]
        return self._chunk(choices, None)

    def usage(self, usage: Usage) -> bytes:
        return self._chunk([], usage)

    def calls(self, calls: tuple[Call, ...]) -> bytes:
        return self.chunk({"tool_calls": [{"index": n, **self._render_call(call)} for n, call in enumerate(calls)]})

    def completion(self, progress: TurnOutput) -> bytes:
        message: dict[str, Any] = {"role": "assistant", "content": progress.text or None, "refusal": None}
        if progress.calls:
            message["tool_calls"] = [self._render_call(call) for call in progress.calls]
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": progress.finish_reason}
        fields = self._fields("chat.completion", [choice])
        return msgspec.json.encode({**fields, "usage": render_usage(progress.usage)})

    def _chunk(self, choices: list[dict[str, Any]], usage: Usage | None) -> bytes:
        fields = self._fields("chat.completion.chunk", choices)
        if self.wants_usage:
            fields["usage"] = render_usage(usage) if usage else None
        return msgspec.json.encode(fields)

    def _fields(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}

    def _render_call(self, call: Call) -> dict[str, Any]:
        arguments = call.broken or msgspec.json.encode(call.args).decode()
        function = {"name": call.tool, "arguments": arguments}
        return {"id": encode_call_id(self.session, call.id), "type": "function", "function": function}


def render_usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }


async def create_completion(request: Request) -> Response:
    """Answer a conversation: with one completion, or with a stream of chunks."""
    agent = agent_of(request)
    body = await request.body()
    order = parse_chat_request(body, agent.config.limits.input)
    _check(order)
    chosen = settings_for_model(agent.config, order.model)
    if order.tools and ("runtime" in chosen or not (session_header(request) or order.last_call_ids)):
        check_client_tools(chosen, agent.default_runtime)
    key = idempotency_key(request)
    opened = await resolve_chat_session(agent, request, order, key)
    settings = {**({"instructions": order.instructions} if order.instructions else {}), **chosen}
    place = f"chatcmpl-{digest(opened.session.id, key) if key else secrets.token_hex(16)}"
    wish = _input_request(agent, order, opened, settings)
    entered = await accept_input(request, replace(wish, address_id=place, idempotency_key=key or None))
    envelope = CompletionRenderer(
        place,
        entered.entry.at // 1000,
        reported_model(chosen),
        entered.session.id,
        order.is_stream and order.wants_usage,
    )
    headers = {"x-session-id": opened.public_name, **ignored_parameters_header(body)}
    progress = TurnOutput(entered.entry.seq, await entered.state(), bounds_of(agent), is_live=entered.is_next)
    events = agent.follow(entered.session, entered.entry.seq)
    if order.is_stream:
        return EventStreamResponse(_chunks(request, events, envelope, progress), headers)
    return await _wait_for_completion(events, envelope, progress, headers, is_repeatable=bool(key))


def _check(order: ParsedConversation) -> None:
    """Refuse here what would be refused later, so that nothing is begun for it."""
    if order.has_no_message and not order.tool_outputs:
        raise HttpError(400, "the last message is empty", "invalid_request")
    for image in order.new_message.images:
        media_type(image)
    journal_from_history(
        (), order.history, lambda image: Image("", media_type(image)), order.tools if order.has_no_message else None
    )


def _input_request(
    agent: Agent, order: ParsedConversation, resolved: ResolvedSession, settings: Mapping[str, str]
) -> InputRequest:
    words = order.new_message
    wish = InputRequest(
        channel=CHAT,
        address_id="",
        text=words.text,
        images=words.images,
        session=resolved.session.id,
        tools=order.tools,
    )
    if not resolved.takes_history:
        results = [Result(parse_call_id(one.call)[1], one.text) for one in order.tool_outputs]
        return replace(wish, results=results, settings=settings)

    def keep(image: bytes) -> Image:
        return Image(agent.home.blobs.put(image), media_type(image))

    changes: list[Body] = [
        Changed(name, value) for name, value in changed_settings(settings, {}, agent.default_runtime).items()
    ]
    return replace(
        wish, history=journal_from_history(changes, order.history, keep, order.tools if order.has_no_message else None)
    )


async def _wait_for_completion(
    events: AsyncGenerator[Event, None],
    envelope: CompletionRenderer,
    progress: TurnOutput,
    headers: Mapping[str, str],
    *,
    is_repeatable: bool,
) -> Response:
    try:
        async with aclosing(events):
            async for one in events:
                if isinstance(one, Entry):  # deltas say nothing that entries do not
                    progress.add(one)
                if progress.is_over:
                    break
    except Unavailable as error:
        # The turn is in the journal and goes on; asked again without a key, it would be done a second time.
        more = {"retry-after": str(max(1, int(error.retry_after or 1)))}
        more |= {} if is_repeatable else {"x-should-retry": "false"}
        raise HttpError(503, str(error), "unavailable", {**headers, **more}) from error
    if progress.ended and progress.ended.outcome != "done":
        raise _with_headers(turn_error(progress.ended), headers)
    return Response(envelope.completion(progress), headers=dict(headers), media_type="application/json")


def _with_headers(error: HttpError, headers: Mapping[str, str]) -> HttpError:
    return HttpError(error.status, str(error), error.code, {**error.headers, **headers})


async def _chunks(
    request: Request, events: AsyncGenerator[Event, None], envelope: CompletionRenderer, progress: TurnOutput
) -> AsyncGenerator[bytes, None]:
    yield format_event(envelope.chunk({"role": "assistant", "content": ""}))
    try:
        async with aclosing(events):
            async for one in events:
                piece = progress.add(one)
                if piece.restarts_reply:
                    yield RESTART_COMMENT.encode()
                if piece.text:
                    yield format_event(envelope.chunk({"content": piece.text}))
                if progress.is_over:
                    break
    except (Refused, Unavailable) as error:
        log_failure(request, error)
        yield _error_event(request, HttpError(503, str(error), "unavailable"))
        return
    if progress.ended and progress.ended.outcome != "done":
        yield _error_event(request, turn_error(progress.ended))
        return
    if progress.calls:
        yield format_event(envelope.calls(progress.calls))
    yield format_event(envelope.chunk({}, progress.finish_reason))
    if envelope.wants_usage:
        yield format_event(envelope.usage(progress.usage))
    yield format_event("[DONE]")


def _error_event(request: Request, error: HttpError) -> bytes:
    body = error_body(error.status, " ".join(str(error).split()), error.code, request_id(request))
    return format_event(msgspec.json.encode(body))


ROUTES = (
    route(
        "/v1/chat/completions",
        create_completion,
        "POST",
        about=EndpointSpec(
            summary="Answer a conversation, as OpenAI's chat completions do.",
            body=ChatRequest,
            streams=True,
            headers={
                "X-Session-Id": "go on with this session; without it the messages are the history",
                "Idempotency-Key": "the same key gives the same completion and runs nothing twice",
            },
        ),
    ),
)
