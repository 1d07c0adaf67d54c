"""Lines and what they say: JSON-RPC messages parsed from one line each, and rendered to one. Pure.

Requests, answers and notifications with the process at the other end of a line, in either direction.
"""

import logging
import re
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal, cast

import anyio
import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from outrider.runtimes.jsonrpc.errors import ProcessExited, RequestTimeout, RpcError
from outrider.runtimes.jsonrpc.process import Child
from outrider.system.tasks import background_group

RequestId = int | str
"""Of a request that the other side sent. Its ids have nothing to do with ours, and 0 is one of them."""
Version = Literal["", "2.0"]
"""The `jsonrpc` key of what we write; left out when empty."""
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
_NULL = Raw(b"null")
_ESCAPE = re.compile(rb"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|(u[dD][89a-fA-F]..)|.)", re.DOTALL)
"""One escape in a JSON string; a pair of surrogates is one, and half a pair is the group."""


class RpcRequest(Struct, frozen=True):
    """The other side wants an answer: `Peer.answer` or `Peer.refuse`, with this id."""

    id: RequestId
    method: str
    params: Raw
    """`null` when there were none."""


class RpcNotification(Struct, frozen=True):
    """The other side tells something."""

    method: str
    params: Raw
    """`null` when there were none."""


class RpcResponse(Struct, frozen=True):
    """To a request of ours."""

    id: RequestId | None
    outcome: Raw | RpcError


RpcMessage = RpcRequest | RpcNotification


class _WireMessage(Struct):
    id: int | str | None = None
    method: str | UnsetType = UNSET
    params: Raw = _NULL
    result: Raw | UnsetType = UNSET
    error: Raw = _NULL


class _WireError(Struct):
    code: int
    message: str = ""
    data: Raw | UnsetType = UNSET


_message_decoder = msgspec.json.Decoder(_WireMessage)
_error_decoder = msgspec.json.Decoder(_WireError)
_encode = msgspec.json.Encoder().encode


def parse_message(line: bytes) -> RpcMessage | RpcResponse:
    """What a line says. Text that is no Unicode is mended with U+FFFD. Raises `msgspec.DecodeError` for nonsense."""
    found = _message_decoder.decode(repair_unicode(line))
    if found.method is UNSET:
        if found.result is UNSET and bytes(found.error) == b"null":
            raise msgspec.ValidationError("neither a method, nor a result, nor an error")
        return RpcResponse(found.id, _outcome(found))
    if found.id is None:
        return RpcNotification(found.method, found.params)
    return RpcRequest(found.id, found.method, found.params)


def render_message(message: Mapping[str, object], version: Version = "") -> bytes:
    """One line, its end included: valid UTF-8 with no half of a surrogate pair, which some readers drop unheard."""
    whole = {"jsonrpc": version, **message} if version else message
    try:
        line = _encode(whole)
    except UnicodeEncodeError:
        line = _encode(_replace_surrogates(msgspec.to_builtins(whole, builtin_types=(Raw,))))
    # A newline can stand in a `Raw` of the caller's only, between two words: within strings it is escaped.
    return repair_unicode(line).replace(b"\n", b" ") + b"\n"


def repair_unicode(text: bytes) -> bytes:
    """JSON with everything that is not Unicode replaced by U+FFFD; the same bytes when there is nothing of the kind."""
    if not text.isascii():
        try:
            text.decode()
        except UnicodeDecodeError:
            text = text.decode(errors="replace").encode()
    if b"\\ud" in text or b"\\uD" in text:
        text = _ESCAPE.sub(lambda found: rb"\ufffd" if found[1] else found[0], text)
    return text


def _outcome(line: _WireMessage) -> Raw | RpcError:
    if bytes(line.error) == b"null":
        return _NULL if line.result is UNSET else line.result
    try:
        error = _error_decoder.decode(line.error)
    except msgspec.DecodeError:
        # Whatever shape it has: the request it answers must not wait any longer.
        return RpcError(INTERNAL_ERROR, "an error that is not one of JSON-RPC", line.error)
    return RpcError(error.code, error.message, None if error.data is UNSET else error.data)


def _replace_surrogates(value: Any) -> Any:
    match value:
        case str():
            # By way of UTF-16, so that two halves that belong together become one again.
            return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        case dict():
            pairs = cast("dict[Any, Any]", value).items()
            return {_replace_surrogates(key): _replace_surrogates(inner) for key, inner in pairs}
        case list() | tuple():
            return [_replace_surrogates(inner) for inner in cast("Sequence[Any]", value)]
        case _:
            return value


_OVERHEAD = 512
"""About what a message costs besides its bytes: many short ones would else take much more than they say."""
_log = logging.getLogger("outrider.jsonrpc")


class ConnectionOptions(Struct, frozen=True):
    """How this peer is spoken with."""

    version: Version = ""
    """Codex does without, ACP wants `2.0`."""
    timeout: float = 30.0
    """Seconds that a request waits for its answer when it does not say otherwise."""
    max_queued_bytes: int = 16 * 1024 * 1024
    """Bytes of messages that wait for their owner before no more is read; one more line may come on top."""


class _PendingRequest:
    """A request of ours without an answer."""

    def __init__(self) -> None:
        self.answered = anyio.Event()
        self.outcome: Raw | RpcError | None = None
        """None when there will be none any more."""


class RpcConnection:
    """Speaks with one child until it is gone; made by `open_peer`.

    Answers come in the same pipe as messages. Whoever waits for an answer must see to it that messages are taken
    meanwhile: when more than `room` of them wait, nothing is read, and the child has to wait too. None is lost.
    """

    def __init__(self, child: Child, traits: ConnectionOptions) -> None:
        self._child = child
        self._options = traits
        self._last_id = 0
        self._pending: dict[int, _PendingRequest] = {}
        self._messages: deque[tuple[RpcMessage, int]] = deque()
        self._queued_bytes = 0
        self.received = 0
        """How many messages have come: those before an answer came before it, taken or not."""
        self._changed = anyio.Event()
        self._is_closed = False

    async def request(self, method: str, params: Any = None, patience: float | None = None) -> Raw:
        """Ask, and wait for the result, to be decoded by its owner. `math.inf` waits as long as the child lives.

        Raises RpcError when the answer is an error, NoAnswer when none came in time, ChildGone when none will come.
        Cancelling it forgets it; the other side is not told.
        """
        seconds = self._options.timeout if patience is None else patience
        self._last_id += 1
        number = self._last_id
        waiting = self._pending[number] = _PendingRequest()
        try:
            with anyio.fail_after(seconds):
                await self._send({"id": number, "method": method, **_params_field(params)})
                await waiting.answered.wait()
        except TimeoutError:
            raise RequestTimeout(f"{self._child.name} did not answer {method} within {seconds:g} s") from None
        finally:
            self._pending.pop(number, None)
        if waiting.outcome is None:
            raise self._child.exit_error()
        if isinstance(waiting.outcome, RpcError):
            raise waiting.outcome
        return waiting.outcome

    async def notify(self, method: str, params: Any = None) -> None:
        """Tell something that has no answer. Raises ChildGone."""
        await self._send({"method": method, **_params_field(params)})

    async def respond(self, id: RequestId, result: Any = None) -> None:
        """Answer a request of the other side. Raises ChildGone."""
        await self._send({"id": id, "result": result})

    async def respond_error(self, id: RequestId, error: RpcError) -> None:
        """Answer a request of the other side with an error. Raises ChildGone."""
        data = {} if error.data is None else {"data": error.data}
        await self._send({"id": id, "error": {"code": error.code, "message": error.message, **data}})

    def messages(self) -> AsyncIterator[RpcMessage]:
        """Requests and notifications of the other side, in their order, each once; for one owner.

        Raises ChildGone after the last one. Leaving it and coming back loses nothing.
        """
        return _Messages(self)

    async def next_message(self) -> RpcMessage:
        """The next of `messages`. May be cancelled: one that was taken is always returned."""
        await anyio.lowlevel.checkpoint()
        while not self._messages:
            if self._is_closed:
                raise self._child.exit_error()
            await self._changed.wait()
        message, size = self._messages.popleft()
        self._queued_bytes -= size
        self._wake()
        return message

    async def read_loop(self) -> None:
        """Take line after line until the child is gone."""
        try:
            while True:
                self._handle_line(await self._child.read_line())
                while self._queued_bytes > self._options.max_queued_bytes and not self._child.is_closed:
                    await self._changed.wait()
        except ProcessExited as gone:
            _log.debug("%s", gone)
        finally:
            self._is_closed = True
            self._wake()
            for waiting in self._pending.values():
                waiting.answered.set()

    async def wake_on_exit(self) -> None:
        """Let the last words be read, however many wait already: they are few, and no more will come."""
        await self._child.wait_closed()
        self._wake()

    async def _send(self, message: dict[str, object]) -> None:
        await self._child.send(render_message(message, self._options.version))

    def _handle_line(self, line: bytes) -> None:
        if not line.strip():
            return
        try:
            found = parse_message(line)
        except msgspec.DecodeError as error:
            _log.warning("%s wrote a line of %d bytes that says nothing: %s", self._child.name, len(line), error)
            return
        if not isinstance(found, RpcResponse):
            self._messages.append((found, len(line) + _OVERHEAD))
            self.received += 1
            self._queued_bytes += len(line) + _OVERHEAD
            self._wake()
            return
        waiting = self._pending.pop(found.id, None) if isinstance(found.id, int) else None
        if waiting is None:
            _log.info("%s answered %r, which nobody waits for", self._child.name, found.id)
            return
        waiting.outcome = found.outcome
        waiting.answered.set()

    def _wake(self) -> None:
        """Wake whoever waits for messages, or for room for them."""
        self._changed.set()
        self._changed = anyio.Event()


class _Messages:
    def __init__(self, peer: RpcConnection) -> None:
        self._connection = peer

    def __aiter__(self) -> "_Messages":
        return self

    async def __anext__(self) -> RpcMessage:
        return await self._connection.next_message()


@asynccontextmanager
async def open_connection(child: Child, traits: ConnectionOptions | None = None) -> AsyncGenerator[RpcConnection]:
    """Speak with a child, from here to the end of the block. The child is opened, and ended, around it."""
    peer = RpcConnection(child, traits or ConnectionOptions())
    async with background_group() as group:
        group.start_soon(peer.read_loop)
        group.start_soon(peer.wake_on_exit)
        yield peer


def _params_field(params: object) -> dict[str, object]:
    return {} if params is None else {"params": params}
