"""JSON-RPC connection to a child process: requests, responses and notifications in both directions, one per line."""

import logging
import re
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal, cast

import anyio
import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from outrider.runtimes.jsonrpc.decoding import LenientDecoder, TextOrObject
from outrider.runtimes.jsonrpc.errors import ProcessExited, RequestTimeout, RpcError
from outrider.runtimes.jsonrpc.process import Child
from outrider.system.task_groups import background_group

RequestId = int | str | Raw
"""The id of a request that the child sent. Its ids are independent of ours, and 0 is a valid one. One of another type,
which JSON-RPC does not allow, is answered as it is."""
Version = Literal["", "2.0"]
"""The `jsonrpc` field of the messages we send; left out when empty."""
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
_OVERHEAD = 512
"""Bytes that a queued message takes besides its text, roughly: many short messages would else take much more."""
_log = logging.getLogger("outrider.jsonrpc")
_NULL = Raw(b"null")
_ESCAPE = re.compile(rb"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|(u[dD][89a-fA-F]..)|.)", re.DOTALL)
"""One escape in a JSON string. A surrogate pair is one match; the group matches half a pair."""


class RpcRequest(Struct, frozen=True):
    """A request of the child, to be answered with `respond` or `respond_error` and this id."""

    id: RequestId
    method: str
    params: Raw
    """`null` when there were none."""


class RpcNotification(Struct, frozen=True):
    method: str
    params: Raw
    """`null` when there were none."""


class RpcResponse(Struct, frozen=True):
    """The response to a request of ours."""

    id: int | str | None
    outcome: Raw | RpcError


RpcMessage = RpcRequest | RpcNotification


class _WireMessage(Struct):
    id: int | str | None = None
    method: str | UnsetType = UNSET
    params: Raw = _NULL
    result: Raw | UnsetType = UNSET
    error: Raw = _NULL


class _WireError(TextOrObject):
    code: int = INTERNAL_ERROR
    message: str = ""
    data: Raw | UnsetType = UNSET


_message_decoder = msgspec.json.Decoder(_WireMessage)
_lenient_decoder = LenientDecoder(_WireMessage)
_error_decoder = LenientDecoder(_WireError)
_encode = msgspec.json.Encoder().encode


def parse_message(line: bytes) -> RpcMessage | RpcResponse:
    """The message in a line. Invalid Unicode is replaced by U+FFFD. Raises `msgspec.DecodeError`.

    A request whose method cannot be read has an empty one, so that it can be answered; a response without a result has
    the result null, so that nobody waits for it.
    """
    whole = repair_unicode(line)
    id: RequestId | None
    try:
        message = _message_decoder.decode(whole)
        id = message.id
    except (msgspec.DecodeError, RecursionError):
        message, id = _parse_leniently(whole)
    if isinstance(message.method, str):
        if id is None:
            return RpcNotification(message.method, message.params)
        return RpcRequest(id, message.method, message.params)
    if message.result is not UNSET or bytes(message.error) != b"null":
        return RpcResponse(message.id, _outcome(message))
    if id is None:
        raise msgspec.ValidationError("neither a method, nor a result, nor an error")
    if bytes(message.params) != b"null":
        return RpcRequest(id, "", message.params)
    return RpcResponse(message.id, _NULL)


def _parse_leniently(line: bytes) -> tuple[_WireMessage, RequestId | None]:
    """The fields of a message that have their type, and its id of any type. Raises `msgspec.DecodeError`."""
    try:
        parts = msgspec.json.decode(line, type=dict[str, Raw])
    except RecursionError:
        raise msgspec.DecodeError("it is nested too deeply") from None
    id = parts.pop("id", _NULL)
    if not bytes(parts.get("method", _NULL)).startswith(b'"'):
        # A number would be read as a text.
        parts.pop("method", None)
    message = _lenient_decoder.decode(_encode({**parts, "id": id}))
    return message, Raw(bytes(id)) if message.id is None and bytes(id) != b"null" else message.id


def render_message(message: Mapping[str, object], version: Version = "") -> bytes:
    """The message as one line with its end: valid UTF-8 without lone surrogates, since some readers drop such lines."""
    whole = {"jsonrpc": version, **message} if version else message
    try:
        line = _encode(whole)
    except UnicodeEncodeError:
        line = _encode(_replace_surrogates(msgspec.to_builtins(whole, builtin_types=(Raw,))))
    # Only a `Raw` of the caller can contain newlines, and only between tokens: within strings they are escaped.
    return repair_unicode(line).replace(b"\n", b" ") + b"\n"


def repair_unicode(text: bytes) -> bytes:
    """JSON with invalid Unicode replaced by U+FFFD; the same bytes when there is none."""
    if not text.isascii():
        try:
            text.decode()
        except UnicodeDecodeError:
            text = text.decode(errors="replace").encode()
    if b"\\ud" in text or b"\\uD" in text:
        text = _ESCAPE.sub(lambda match: rb"\ufffd" if match[1] else match[0], text)
    return text


def _outcome(line: _WireMessage) -> Raw | RpcError:
    if bytes(line.error) == b"null":
        return _NULL if line.result is UNSET else line.result
    error = _error_decoder.decode(line.error)
    if not error.message:
        return RpcError(error.code, "an error that is not valid JSON-RPC", line.error)
    return RpcError(error.code, error.message, None if error.data is UNSET else error.data)


def _replace_surrogates(value: Any) -> Any:
    match value:
        case str():
            # Through UTF-16, so that the two halves of a pair become one character again.
            return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        case dict():
            pairs = cast("dict[Any, Any]", value).items()
            return {_replace_surrogates(key): _replace_surrogates(inner) for key, inner in pairs}
        case list() | tuple():
            return [_replace_surrogates(inner) for inner in cast("Sequence[Any]", value)]
        case _:
            return value


class ConnectionOptions(Struct, frozen=True):
    """How messages are sent and received."""

    version: Version = ""
    """Codex uses none, ACP requires `2.0`."""
    timeout: float = 30.0
    """Seconds that a request waits for its response by default."""
    max_queued_bytes: int = 16 * 1024 * 1024
    """Bytes of received messages that are queued before reading pauses; one more line may be added."""


class _PendingRequest:
    """A request of ours without a response."""

    def __init__(self) -> None:
        self._resolved = anyio.Event()
        self._outcome: Raw | RpcError | None = None

    def resolve(self, outcome: Raw | RpcError | None) -> None:
        """None when no response will come any more."""
        self._outcome = outcome
        self._resolved.set()

    async def wait(self) -> Raw | RpcError | None:
        await self._resolved.wait()
        return self._outcome


class RpcConnection:
    """A connection to one child until it exits; opened by `open_connection`.

    Responses come in the same pipe as messages. While a request waits, messages must be consumed: when more than
    `max_queued_bytes` are queued, nothing is read, and the child has to wait. No message is lost.
    """

    def __init__(self, child: Child, options: ConnectionOptions) -> None:
        self._child = child
        self._options = options
        self._last_id = 0
        self._pending: dict[int, _PendingRequest] = {}
        self._messages: deque[tuple[RpcMessage, int]] = deque()
        self._queued_bytes = 0
        self.received = 0
        """The number of messages so far, consumed or not. Those before a response were received before it."""
        self._changed = anyio.Event()
        self._is_closed = False

    async def request(self, method: str, params: Any = None, within: float | None = None) -> Raw:
        """Send a request and wait for its result, at most `within` seconds; `math.inf` waits as long as the child runs.

        Raises RpcError when the response is an error, RequestTimeout when none came in time, and ProcessExited when
        none will come. Cancelling it drops the response; the child is not notified.
        """
        seconds = self._options.timeout if within is None else within
        self._last_id += 1
        number = self._last_id
        pending = self._pending[number] = _PendingRequest()
        try:
            with anyio.fail_after(seconds):
                await self._send({"id": number, "method": method, **_params_field(params)})
                outcome = await pending.wait()
        except TimeoutError:
            raise RequestTimeout(f"{self._child.name} did not answer {method} within {seconds:g} s") from None
        finally:
            self._pending.pop(number, None)
        if outcome is None:
            raise self._child.exit_error()
        if isinstance(outcome, RpcError):
            raise outcome
        return outcome

    async def notify(self, method: str, params: Any = None) -> None:
        """Send a notification. Raises ProcessExited."""
        await self._send({"method": method, **_params_field(params)})

    async def respond(self, id: RequestId, result: Any = None) -> None:
        """Respond to a request of the child. Raises ProcessExited."""
        await self._send({"id": id, "result": result})

    async def respond_error(self, id: RequestId, error: RpcError) -> None:
        """Respond to a request of the child with an error. Raises ProcessExited."""
        data = {} if error.data is None else {"data": error.data}
        await self._send({"id": id, "error": {"code": error.code, "message": error.message, **data}})

    def messages(self) -> AsyncIterator[RpcMessage]:
        """Requests and notifications of the child, in their order, each once; for one consumer.

        Raises ProcessExited after the last one. A consumer may stop and start again without losing any.
        """
        return _Messages(self)

    async def next_message(self) -> RpcMessage:
        """The next of `messages`. Cancelling it loses no message."""
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
        """Read lines until the child has exited."""
        try:
            while True:
                self._handle_line(await self._child.read_line())
                while self._queued_bytes > self._options.max_queued_bytes and not self._child.is_closed:
                    await self._changed.wait()
        except ProcessExited as exited:
            _log.debug("%s", exited)
        finally:
            self._is_closed = True
            self._wake()
            for pending in self._pending.values():
                pending.resolve(None)

    async def wake_on_exit(self) -> None:
        """Let the last lines be read even when the queue is full: they are few, and no more will come."""
        await self._child.wait_closed()
        self._wake()

    async def _send(self, message: dict[str, object]) -> None:
        await self._child.send(render_message(message, self._options.version))

    def _handle_line(self, line: bytes) -> None:
        if not line.strip():
            return
        try:
            message = parse_message(line)
        except msgspec.DecodeError as error:
            _log.warning("%s wrote a line of %d bytes that is no message: %s", self._child.name, len(line), error)
            return
        if not isinstance(message, RpcResponse):
            self._messages.append((message, len(line) + _OVERHEAD))
            self.received += 1
            self._queued_bytes += len(line) + _OVERHEAD
            self._wake()
            return
        pending = self._pending.pop(_our_id(message.id), None)
        if pending is None:
            _log.info("%s responded to %r, for which no request is waiting", self._child.name, message.id)
            return
        pending.resolve(message.outcome)

    def _wake(self) -> None:
        """Wake those that wait for messages, or for room in the queue."""
        self._changed.set()
        self._changed = anyio.Event()


class _Messages:
    def __init__(self, connection: RpcConnection) -> None:
        self._connection = connection

    def __aiter__(self) -> "_Messages":
        return self

    async def __anext__(self) -> RpcMessage:
        return await self._connection.next_message()


@asynccontextmanager
async def open_connection(child: Child, options: ConnectionOptions | None = None) -> AsyncGenerator[RpcConnection]:
    """A connection to a running child. `open_child` around it starts and ends the child."""
    connection = RpcConnection(child, options or ConnectionOptions())
    async with background_group() as group:
        group.start_soon(connection.read_loop)
        group.start_soon(connection.wake_on_exit)
        yield connection


def _our_id(id: int | str | None) -> int:
    """The id of a request of ours, which are numbers, from a response; 0 when it is none."""
    if isinstance(id, str):
        return int(id) if id.isascii() and id.isdecimal() and len(id) < 16 else 0
    return id or 0


def _params_field(params: object) -> dict[str, object]:
    return {} if params is None else {"params": params}
