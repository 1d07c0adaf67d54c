"""Messages of the Codex app-server protocol, as far as they are used.

Unknown fields are ignored, and missing ones have defaults.
"""

from typing import Any, cast

import msgspec
from msgspec import Raw, Struct
from msgspec import field as _default

from outrider.core.types import Usage

_CLIENT_ID_PREFIX = "outrider-"


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


class CodexError(Struct, rename="camel"):
    message: str = ""
    codex_error_info: Any = None
    additional_details: str | None = None


class CodexTurn(Struct, rename="camel"):
    id: str = ""
    status: str = ""
    error: CodexError | None = None
    items: list[ThreadItem] = []


class Tokens(Struct, rename="camel"):
    input_tokens: int = 0
    cached_input_tokens: int = 0
    cache_write_input_tokens: int = 0
    output_tokens: int = 0
    reasoning_output_tokens: int = 0

    def usage(self) -> Usage:
        return Usage(
            self.input_tokens,
            self.output_tokens,
            self.cached_input_tokens,
            self.cache_write_input_tokens,
            self.reasoning_output_tokens,
        )


class TokenUsage(Struct):
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
    arguments: str = ""
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
    token_usage: TokenUsage = _default(default_factory=TokenUsage)
    message: str = ""
    request_id: Any = None


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


class _Turns(Struct, rename="camel"):
    data: list[CodexTurn] = []
    next_cursor: str | None = None


class _TurnStartResponse(Struct):
    turn: CodexTurn = _default(default_factory=CodexTurn)


class _Thread(Struct):
    status: Any = None
    turns: list[CodexTurn] = []


class _ThreadReadResponse(Struct):
    thread: _Thread = _default(default_factory=_Thread)


class _AccountReadResponse(Struct, rename="camel"):
    account: Any = None
    requires_openai_auth: bool = False


_notification_decoder = msgspec.json.Decoder(NotificationParams)
_server_request_decoder = msgspec.json.Decoder(ServerRequestParams)
_item_decoder = msgspec.json.Decoder(ThreadItem)
_raw_item_decoder = msgspec.json.Decoder(RawItem)
_turns_decoder = msgspec.json.Decoder(_Turns)


def parse_notification(params: Raw) -> NotificationParams:
    """Raises `msgspec.DecodeError` when a field has another type."""
    return NotificationParams() if bytes(params) == b"null" else _notification_decoder.decode(params)


def parse_server_request(params: Raw) -> ServerRequestParams:
    return ServerRequestParams() if bytes(params) == b"null" else _server_request_decoder.decode(params)


def parse_item(item: Raw) -> ThreadItem:
    return _item_decoder.decode(item)


def parse_raw_item(item: Raw) -> RawItem:
    return _raw_item_decoder.decode(item)


def parse_turns(result: Raw) -> list[CodexTurn]:
    return _turns_decoder.decode(result).data


def parse_turn_id(result: Raw) -> str:
    """The turn's id in the response to `turn/start`."""
    return msgspec.json.decode(result, type=_TurnStartResponse).turn.id


def parse_is_active(result: Raw) -> bool:
    """Whether the response to `thread/read` says that a turn is running."""
    status = msgspec.json.decode(result, type=_ThreadReadResponse).thread.status
    return _get_text(status, "type") == "active" or status == "active"


def parse_needs_login(result: Raw) -> bool:
    """Whether the response to `account/read` says that a login is needed."""
    response = msgspec.json.decode(result, type=_AccountReadResponse)
    return response.account is None and response.requires_openai_auth


def parse_thread_id(result: Raw) -> str:
    """The thread's id, in any of the fields that versions of Codex use; empty when there is none."""
    response = msgspec.json.decode(result)
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
    projects = get_field(get_field(msgspec.json.decode(result), "config"), "projects")
    return frozenset(cast("dict[str, Any]", projects)) if isinstance(projects, dict) else frozenset()


def parse_model(result: Raw) -> str:
    return _get_text(msgspec.json.decode(result), "model")


def parse_configured_model(result: Raw) -> str:
    """The model in Codex's own settings; empty when they name none."""
    return _get_text(get_field(msgspec.json.decode(result), "config"), "model")


def parse_default_model(result: Raw) -> str:
    """The default model among those that Codex lists."""
    data = get_field(msgspec.json.decode(result), "data")
    models = cast("list[object]", data) if isinstance(data, list) else []
    return next((_get_text(model, "model") for model in models if get_field(model, "isDefault") is True), "")


def parse_user_agent(result: Raw) -> str:
    return _get_text(msgspec.json.decode(result), "userAgent")


def parse_config_warning(params: Raw) -> str:
    """The error in a file of Codex's settings; empty for any other warning."""
    warning = msgspec.json.decode(params)
    return (_get_text(warning, "details") or _get_text(warning, "summary")) if _get_text(warning, "path") else ""


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
