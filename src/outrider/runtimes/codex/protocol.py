"""What we read of Codex's messages. Whatever else they hold is ignored, and what is missing has a default."""

from typing import Any, cast

import msgspec
from msgspec import Raw, Struct
from msgspec import field as _default

from outrider.core.types import Usage


class FileUpdateChange(Struct, rename="camel"):
    path: str = ""
    kind: Any = None
    diff: str = ""


class ThreadItem(Struct, rename="camel"):
    """One thing in a turn, of whatever type: the fields of all types we know, side by side."""

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
    """An error as Codex tells it."""

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


class _Usage(Struct):
    last: Tokens = _default(default_factory=Tokens)


class RawItem(Struct):
    """What the model itself wrote, or was answered, in the words of the Responses API."""

    type: str = ""
    call_id: str = ""
    name: str = ""
    arguments: str = ""
    input: str = ""
    output: Any = None


class NotificationParams(Struct, rename="camel"):
    """The parameters of a notification, those of all kinds side by side."""

    thread_id: str = ""
    turn_id: str = ""
    item_id: str = ""
    item: Raw = Raw(b"{}")
    turn: CodexTurn = _default(default_factory=CodexTurn)
    delta: str = ""
    error: CodexError = _default(default_factory=CodexError)
    will_retry: bool = False
    token_usage: _Usage = _default(default_factory=_Usage)
    message: str = ""
    request_id: Any = None


class ServerRequestParams(Struct, rename="camel"):
    """The parameters of a question, those of all kinds side by side."""

    thread_id: str = ""
    turn_id: str = ""
    item_id: str = ""
    call_id: str = ""
    reason: str | None = None
    command: str | None = None
    cwd: str | None = None
    additional_permissions: Any = None
    permissions: Any = None
    grant_root: str | None = None
    server_name: str = ""
    message: str = ""
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
    """Raises `msgspec.DecodeError` when a field that we know is of another type."""
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
    """Of the answer to `turn/start`."""
    return msgspec.json.decode(result, type=_TurnStartResponse).turn.id


def parse_is_active(result: Raw) -> bool:
    """Whether the answer to `thread/read` says that a turn goes on there."""
    status = msgspec.json.decode(result, type=_ThreadReadResponse).thread.status
    return _get_text(status, "type") == "active" or status == "active"


def parse_needs_login(result: Raw) -> bool:
    """Whether the answer to `account/read` says that somebody must log in first."""
    found = msgspec.json.decode(result, type=_AccountReadResponse)
    return found.account is None and found.requires_openai_auth


def parse_thread_id(result: Raw) -> str:
    """The thread's id, wherever this version puts it; empty when there is none."""
    found = msgspec.json.decode(result)
    thread = get_field(found, "thread")
    places = ((thread, "id"), (thread, "sessionId"), (found, "sessionId"), (found, "threadId"), (thread, "threadId"))
    return next((text for place, name in places if (text := _get_text(place, name))), "")


def parse_projects(result: Raw) -> frozenset[str]:
    """The folders about which Codex's own settings say whether they are trusted."""
    found = get_field(get_field(msgspec.json.decode(result), "config"), "projects")
    return frozenset(cast("dict[str, Any]", found)) if isinstance(found, dict) else frozenset()


def parse_model(result: Raw) -> str:
    return _get_text(msgspec.json.decode(result), "model")


def parse_configured_model(result: Raw) -> str:
    """The model that Codex's own settings name; empty when they name none."""
    return _get_text(get_field(msgspec.json.decode(result), "config"), "model")


def parse_default_model(result: Raw) -> str:
    """The model that Codex takes by itself, of those it lists."""
    listed = get_field(msgspec.json.decode(result), "data")
    models = cast("list[object]", listed) if isinstance(listed, list) else []
    return next((_get_text(model, "model") for model in models if get_field(model, "isDefault") is True), "")


def parse_user_agent(result: Raw) -> str:
    return _get_text(msgspec.json.decode(result), "userAgent")


def parse_config_warning(params: Raw) -> str:
    """What is wrong with a file of Codex's settings; empty when it warns of something else."""
    found = msgspec.json.decode(params)
    return (_get_text(found, "details") or _get_text(found, "summary")) if _get_text(found, "path") else ""


def get_field(path: object, name: str) -> Any:
    """A field of what may be an object; None when it is none, or has it not."""
    return cast("dict[str, Any]", path).get(name) if isinstance(path, dict) else None


def _get_text(path: object, name: str) -> str:
    found = get_field(path, name)
    return found if isinstance(found, str) else ""


_CLIENT_ID_PREFIX = "outrider-"


def client_id(seq: int) -> str:
    """By which an input is known again."""
    return f"{_CLIENT_ID_PREFIX}{seq}"


def parse_client_id(text: str | None) -> int:
    """The input's number; 0 when it is none of ours."""
    number = (text or "").removeprefix(_CLIENT_ID_PREFIX)
    return int(number) if text and text.startswith(_CLIENT_ID_PREFIX) and number.isdecimal() else 0
