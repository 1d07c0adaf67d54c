"""One run of a turn on a server with OpenAI's chat completions: one streamed request for all inputs so far."""

from outrider.core.events import Bound, Delta, Reply, Result
from outrider.core.plan import State
from outrider.core.ports import Turn
from outrider.core.prompt import UNKNOWN
from outrider.core.types import REMOTE
from outrider.runtimes.base import RuntimeContext
from outrider.runtimes.remote.chat_completions import CUT_REASONS, CompletionParser, render_messages, render_request
from outrider.runtimes.remote.client import MAX_BODY, RemoteClient
from outrider.runtimes.remote.errors import PARTIAL, RemoteFailed, connection_failure, content_failure
from outrider.system.failpoints import failpoint
from outrider.system.http_client import StreamedResponse
from outrider.system.sse import SseParser, SseTooLong

SESSION_HEADERS = ("x-session-id", "x-hermes-session-id")
"""Headers for the session: our own, and Hermes Agent's."""
_REQUEST = "request-"


def is_chat_binding(bound: Bound) -> bool:
    """Whether this is about a chat completions server."""
    return bound.turn.startswith(_REQUEST)


def _was_interrupted(state: State) -> bool:
    """Whether a request with the newest inputs was sent before, and its reply is not recorded."""
    bound = state.threads.get(REMOTE)
    return bool(bound and state.has_unseen and bound.turn == f"{_REQUEST}{state.newest_input}")


async def run_chat_turn(turn: Turn, client: RemoteClient, context: RuntimeContext, model: str) -> None:
    """Send what was said, and record the reply. Raises RemoteFailed after what arrived is recorded."""
    for call in turn.state().calls:  # of another API of this agent
        await turn.record(Result(call.id, UNKNOWN, failed=True))
    state = turn.state()
    if not (state.has_unseen or state.owes_reply):
        return
    messages = render_messages(
        turn.transcript().messages(),
        state.settings.get("instructions", ""),
        context.blobs,
        was_interrupted=_was_interrupted(state),
    )
    session, saw = turn.session.id, max(state.newest_input, state.saw)
    await turn.record(Bound(REMOTE, session, f"{_REQUEST}{saw}", saw))
    failpoint("call_intent_recorded")

    def emit(delta: Delta) -> None:
        turn.emit(delta)
        failpoint("mid_reply")

    headers = {"accept": "text/event-stream, application/json", "idempotency-key": f"{session}/{saw}.{state.head}"}
    headers |= dict.fromkeys(SESSION_HEADERS, session)
    parser = CompletionParser(emit, 200, client.redact)
    try:
        async with client.stream("POST", "/v1/chat/completions", headers, render_request(model, messages)) as response:
            await _read(response, parser, client)
        parser.check()
    except RemoteFailed as failed:
        if parser.text.strip():
            partial = client.redact(parser.text)
            await turn.record(Reply(partial, saw, model=parser.model, usage=parser.usage, cut=PARTIAL))
        else:
            await turn.record(Reply(str(failed), saw))
        raise
    failpoint("reply_not_recorded")
    cut = CUT_REASONS.get(parser.finish_reason, "")
    await turn.record(Reply(client.redact(parser.text), saw, model=parser.model, usage=parser.usage, cut=cut))


async def _read(response: StreamedResponse, parser: CompletionParser, client: RemoteClient) -> None:
    kind = response.headers.get("content-type", "").lower()
    if "json" in kind and "stream" not in kind:
        parser.body(await response.read(MAX_BODY))
        return
    if "html" in kind:
        raise content_failure(response.status, "a web page instead of a reply; check remote.url", client.redact)
    events = SseParser()
    try:
        async for chunk in response.chunks:
            for event in events.feed(chunk):
                parser.feed(event.data)
            if parser.is_done:
                await response.drain()
                return
    except SseTooLong as error:
        raise content_failure(response.status, str(error), client.redact) from None
    for event in events.close():
        parser.feed(event.data)
    if parser.is_complete:
        return
    if events.stray.strip() and not parser.text:
        start = events.stray[:200].decode("utf-8", "replace")
        raise content_failure(response.status, f"not an event stream: {start}", client.redact)
    raise connection_failure("the stream ended before the reply did", client.redact)
