"""Messages of the Codex app-server protocol, as far as they are used.

They change from version to version, so they are decoded leniently: unknown fields are ignored, missing ones have
defaults, and those of another type are named in `unread`. No message raises an error here.
"""

from typing import Annotated, Any, cast

from msgspec import Meta, Raw, Struct
from msgspec import field as _default

from outrider.core.types import Usage
from outrider.runtimes.jsonrpc.decoding import UNREAD, LenientDecoder, TextOrObject, decode_any

_CLIENT_ID_PREFIX = "outrider-"
_Count = Annotated[int, Meta(ge=0, lt=2**53)]


class FileUpdateChange(Struct, rename="camel"):
    path: str = ""
    kind: Any = None
    diff: str = ""


class ThreadItem(Struct, rename="camel"):
    """An item of a turn: the fields of all known types side by side."""

    type: str = ""
    id: str = ""
    status: str | None = None
    text: str | None = None
    phase: str | None = None
    client_id: str | None = None
    command: str | None = None
    cwd: str | None = None
    process_id: str | None = None
    aggregated_output: str | None = None
    exit_code: int | None = None
    changes: list[FileUpdateChange] | None = None
    server: str | None = None
    tool: str | None = None
    arguments: Any = None
    result: Any = None
    error: Any = None
    query: str | None = None
    path: str | None = None
    prompt: str | None = None
    revised_prompt: str | None = None
    unread: tuple[str, ...] = _default(default=(), name=UNREAD)


class CodexError(TextOrObject, rename="camel"):
    message: str = ""
    codex_error_info: Any = None
    additional_details: str | None = None


class CodexTurn(Struct, rename="camel"):
    id: str = ""
    status: str = ""
    error: CodexError | None = None
    items: list[ThreadItem] = []


class Tokens(Struct, rename="camel"):
    input_tokens: _Count = 0
    cached_input_tokens: _Count = 0
    cache_write_input_tokens: _Count = 0
    output_tokens: _Count = 0
    reasoning_output_tokens: _Count = 0

    def usage(self) -> Usage:
        return Usage(
            self.input_tokens,
            self.output_tokens,
            self.cached_input_tokens,
            self.cache_write_input_tokens,
            self.reasoning_output_tokens,
        )


class ThreadTokenUsage(Struct):
    """The tokens of a thread."""

    last: Tokens = _default(default_factory=Tokens)
    """Of the newest response. It is reported more than once."""
    total: Tokens | None = None
    """Of all responses so far, those of earlier turns and of compactions included."""


class RawItem(Struct):
    """An item of the Responses API: what the model itself wrote, or got as an output."""

    type: str = ""
    call_id: str = ""
    name: str = ""
    arguments: Any = ""
    """JSON in a text for most calls, an object for a few, such as `tool_search`."""
    input: str = ""
    output: Any = None


class NotificationParams(Struct, rename="camel"):
    """The parameters of a notification: those of all kinds side by side."""

    thread_id: str = ""
    turn_id: str = ""
    item_id: str = ""
    item: Raw = Raw(b"{}")
    turn: CodexTurn = _default(default_factory=CodexTurn)
    delta: str = ""
    error: CodexError = _default(default_factory=CodexError)
    will_retry: bool = False
    token_usage: ThreadTokenUsage = _default(default_factory=ThreadTokenUsage)
    message: str = ""
    request_id: Any = None
    status: Any = None
    unread: tuple[str, ...] = _default(default=(), name=UNREAD)


class ServerRequestParams(Struct, rename="camel"):
    """The parameters of a request of Codex: those of all kinds side by side."""

    thread_id: str = ""
    turn_id: str = ""
    item_id: str = ""
    call_id: str = ""
    reason: str | None = None
    command: str | None = None
    cwd: str | None = None
    kind: str = "command"
    """`writeStdin` for input to a command that runs already."""
    network_approval_context: Any = None
    additional_permissions: Any = None
    permissions: Any = None
    grant_root: str | None = None
    server_name: str = ""
    message: str = ""
    title: str = ""
    description: str = ""
    challenge: str = ""
    url: str = ""
    requested_schema: Any = None
    meta: Any = _default(name="_meta", default=None)
    tool: str = ""
    namespace: str | None = None
    arguments: Any = None
    unread: tuple[str, ...] = _default(default=(), name=UNREAD)


class TurnList(Struct, rename="camel"):
    """The response to `thread/turns/list`."""

    data: list[CodexTurn] | None = None
    unread: tuple[str, ...] = _default(default=(), name=UNREAD)


class _TurnStartResponse(Struct):
    turn: CodexTurn = _default(default_factory=CodexTurn)


class _Thread(Struct):
    status: Any = None
    turns: list[CodexTurn] | None = None


class _ThreadReadResponse(Struct):
    thread: _Thread = _default(default_factory=_Thread)
    unread: tuple[str, ...] = _default(default=(), name=UNREAD)


class Account(Struct, rename="camel"):
    type: str = ""
    email: str | None = None
    plan_type: str | None = None


class AccountReadResponse(Struct, rename="camel"):
    account: Account | None = None
    requires_openai_auth: bool = False
    unread: tuple[str, ...] = _default(default=(), name=UNREAD)

    @property
    def needs_login(self) -> bool:
        return self.account is None and self.requires_openai_auth and "account" not in self.unread


class _RolloutLine(Struct):
    payload: RawItem | None = None


_notification_decoder = LenientDecoder(NotificationParams)
_server_request_decoder = LenientDecoder(ServerRequestParams)
_item_decoder = LenientDecoder(ThreadItem)
_raw_item_decoder = LenientDecoder(RawItem)
_turns_decoder = LenientDecoder(TurnList)
_turn_start_decoder = LenientDecoder(_TurnStartResponse)
_thread_read_decoder = LenientDecoder(_ThreadReadResponse)
_account_decoder = LenientDecoder(AccountReadResponse)
_rollout_decoder = LenientDecoder(_RolloutLine)


def parse_notification(params: Raw) -> NotificationParams:
    return NotificationParams() if bytes(params) == b"null" else _notification_decoder.decode(params)


def parse_server_request(params: Raw) -> ServerRequestParams:
    return ServerRequestParams() if bytes(params) == b"null" else _server_request_decoder.decode(params)


def parse_item(item: Raw) -> ThreadItem:
    return _item_decoder.decode(item)


def parse_raw_item(item: Raw) -> RawItem:
    return _raw_item_decoder.decode(item)


def parse_rollout_line(line: bytes) -> RawItem:
    """The item in a line of the file in which Codex records a thread; an empty one when it has none."""
    return _rollout_decoder.decode(line).payload or RawItem()


def parse_turns(result: Raw) -> TurnList:
    return _turns_decoder.decode(result)


def parse_thread_turns(result: Raw) -> TurnList:
    """The turns in the response to `thread/read`, as `thread/turns/list` returns them: newest first."""
    response = _thread_read_decoder.decode(result)
    turns = response.thread.turns
    unread = tuple(name.replace("thread.turns", "data", 1) for name in response.unread)
    return TurnList(None if turns is None else turns[::-1], unread)


def parse_turn_id(result: Raw) -> str:
    """The turn's id in the response to `turn/start`; empty when it cannot be read."""
    return _turn_start_decoder.decode(result).turn.id


def parse_is_active(result: Raw) -> bool:
    """Whether the response to `thread/read` says that a turn is running."""
    return thread_status(_thread_read_decoder.decode(result).thread.status) == "active"


def thread_status(status: Any) -> str:
    """The name of a thread's status, which is an object with more about it; empty when it cannot be read."""
    return status if isinstance(status, str) else _get_text(status, "type")


def is_server_request(method: str) -> bool:
    """Whether Codex waits for a response to this."""
    return method.endswith("/requestApproval") or method in ("item/tool/call", "mcpServer/elicitation/request")


def parse_account(result: Raw) -> AccountReadResponse:
    return _account_decoder.decode(result)


def parse_needs_login(result: Raw) -> bool:
    """Whether the response to `account/read` says that a login is needed."""
    return parse_account(result).needs_login


def parse_thread_id(result: Raw) -> str:
    """The thread's id, in any of the fields that versions of Codex use; empty when there is none."""
    response = decode_any(result)
    thread = get_field(response, "thread")
    fields = (
        (thread, "id"),
        (thread, "sessionId"),
        (response, "sessionId"),
        (response, "threadId"),
        (thread, "threadId"),
    )
    return next((text for value, name in fields if (text := _get_text(value, name))), "")


def parse_projects(result: Raw) -> frozenset[str]:
    """The folders for which Codex's own settings say whether they are trusted."""
    projects = get_field(get_field(decode_any(result), "config"), "projects")
    return frozenset(cast("dict[str, Any]", projects)) if isinstance(projects, dict) else frozenset()


def parse_model(result: Raw) -> str:
    return _get_text(decode_any(result), "model")


def parse_configured_model(result: Raw) -> str:
    """The model in Codex's own settings; empty when they name none."""
    return _get_text(get_field(decode_any(result), "config"), "model")


def parse_default_model(result: Raw) -> str:
    """The default model among those that Codex lists."""
    data = get_field(decode_any(result), "data")
    models = cast("list[object]", data) if isinstance(data, list) else []
    return next((_get_text(model, "model") for model in models if get_field(model, "isDefault") is True), "")


def parse_user_agent(result: Raw) -> str:
    return _get_text(decode_any(result), "userAgent")


def parse_config_warning(params: Raw) -> str:
    """The error in a file of Codex's settings; empty for any other warning."""
    warning = decode_any(params)
    return (_get_text(warning, "details") or _get_text(warning, "summary")) if _get_text(warning, "path") else ""


def parse_arguments(arguments: Any) -> dict[str, Any] | None:
    """The arguments of a call, which are an object, or one as JSON in a text; None when they are something else."""
    if arguments is None:
        return {}
    given = decode_any(arguments.encode(errors="replace")) if isinstance(arguments, str) else arguments
    return cast("dict[str, Any]", given) if isinstance(given, dict) else None


def get_field(value: object, name: str) -> Any:
    """A field of a value that may be an object; None when it is not, or has no such field."""
    return cast("dict[str, Any]", value).get(name) if isinstance(value, dict) else None


def _get_text(value: object, name: str) -> str:
    text = get_field(value, name)
    return text if isinstance(text, str) else ""


def client_id(seq: int) -> str:
    """The id of an input as Codex gets it."""
    return f"{_CLIENT_ID_PREFIX}{seq}"


def parse_client_id(text: str | None) -> int:
    """The number of the input; 0 when the id is not one of ours."""
    number = (text or "").removeprefix(_CLIENT_ID_PREFIX)
    return int(number) if text and text.startswith(_CLIENT_ID_PREFIX) and number.isdecimal() else 0
