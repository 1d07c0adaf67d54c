"""Messages of the Agent Client Protocol, as far as they are used.

Agents differ, so messages are decoded leniently: unknown fields are ignored, null means absent, and a field of another
type is absent, too, and named in `unread`. No message raises an error here.
"""

from typing import Annotated, Any, TypeVar, cast

from msgspec import Meta, Raw, Struct, field
from msgspec.structs import replace

from outrider.core.types import Usage
from outrider.runtimes.jsonrpc.decoding import UNREAD, LenientDecoder, decode_value

PROTOCOL_VERSION = 1
NULL = Raw(b"null")
SILENT_UPDATES = {
    *("user_message_chunk", "available_commands_update", "config_option_update"),
    *("session_info_update", "usage_update", "plan_update", "plan_removed"),
}
"""Kinds of `session/update` that are known and not used."""
_Count = Annotated[int, Meta(ge=0, lt=2**53)]
T = TypeVar("T")


class _AcpStruct(Struct, frozen=True, rename="camel"):
    """A value of the protocol."""


class PromptCapabilities(_AcpStruct, frozen=True):
    image: bool | None = None


class SessionCapabilities(_AcpStruct, frozen=True):
    resume: Any = None


class McpCapabilities(_AcpStruct, frozen=True):
    http: bool | None = None


class AgentCapabilities(_AcpStruct, frozen=True):
    load_session: bool | None = None
    prompt_capabilities: PromptCapabilities | None = None
    mcp_capabilities: McpCapabilities | None = None
    session_capabilities: SessionCapabilities | None = None


class AuthMethod(_AcpStruct, frozen=True):
    id: str = ""
    name: str | None = None
    description: str | None = None


class Implementation(_AcpStruct, frozen=True):
    name: str = ""
    title: str | None = None
    version: str | None = None


class InitializeResponse(_AcpStruct, frozen=True):
    """The agent's capabilities."""

    protocol_version: int | None = None
    """None when it cannot be read."""
    agent_capabilities: AgentCapabilities | None = None
    auth_methods: tuple[AuthMethod, ...] | None = None
    agent_info: Implementation | None = None

    @property
    def can_load(self) -> bool:
        return bool(self.agent_capabilities and self.agent_capabilities.load_session)

    @property
    def can_resume(self) -> bool:
        session = self.agent_capabilities and self.agent_capabilities.session_capabilities
        return bool(session and isinstance(session.resume, dict))

    @property
    def connects_to_http(self) -> bool:
        """Whether it can use an MCP server over HTTP."""
        mcp = self.agent_capabilities and self.agent_capabilities.mcp_capabilities
        return bool(mcp and mcp.http)

    @property
    def accepts_images(self) -> bool:
        prompt = self.agent_capabilities and self.agent_capabilities.prompt_capabilities
        return bool(prompt and prompt.image)


class SessionMode(_AcpStruct, frozen=True):
    id: str = ""
    name: str | None = None


class SessionModes(_AcpStruct, frozen=True):
    current_mode_id: str = ""
    available_modes: tuple[SessionMode, ...] = ()


class ConfigValue(_AcpStruct, frozen=True):
    value: str = ""


class ConfigOption(_AcpStruct, frozen=True):
    """A setting of a session. Some agents have their modes only here."""

    id: str = ""
    category: str | None = None
    current_value: Raw = NULL
    options: Raw = NULL


class OfferedModes(Struct, frozen=True):
    """The modes of a session, and how one is set."""

    names: tuple[str, ...] = ()
    current: str = ""
    option: str = ""
    """The option to set; empty when `session/set_mode` sets it."""


class LoadSessionResponse(_AcpStruct, frozen=True):
    """What `session/new`, `session/load` and `session/resume` say about a session."""

    modes: Raw = NULL
    config_options: Raw = NULL

    def offered_modes(self) -> OfferedModes:
        """No names where the agent has no modes."""
        if modes := parse_or_none(self.modes, SessionModes):
            return OfferedModes(tuple(mode.id for mode in modes.available_modes), modes.current_mode_id)
        for raw in parse_or_none(self.config_options, tuple[Raw, ...]) or ():
            option = parse_or_none(raw, ConfigOption)
            if option and "mode" in (option.category, option.id):
                values = parse_or_none(option.options, tuple[ConfigValue, ...]) or ()
                current = parse_or_none(option.current_value, str) or ""
                return OfferedModes(tuple(value.value for value in values), current, option.id)
        return OfferedModes()


class NewSessionResponse(LoadSessionResponse, frozen=True, kw_only=True):
    session_id: str = ""


class TokenUsage(_AcpStruct, frozen=True):
    input_tokens: _Count | None = None
    output_tokens: _Count | None = None
    thought_tokens: _Count | None = None
    cached_read_tokens: _Count | None = None
    cached_write_tokens: _Count | None = None


class _TokenCount(Struct, frozen=True):
    input_tokens: _Count | None = None
    output_tokens: _Count | None = None


class _Quota(Struct, frozen=True):
    token_count: _TokenCount = _TokenCount()


class _PromptMeta(Struct, frozen=True):
    quota: _Quota = _Quota()


class PromptResponse(_AcpStruct, frozen=True):
    """How a prompt ended."""

    stop_reason: str = ""
    usage: TokenUsage | None = None
    meta: _PromptMeta | None = field(default=None, name="_meta")
    """Where gemini-cli reports its tokens."""
    unread: tuple[str, ...] = field(default=(), name=UNREAD)

    def tokens(self) -> Usage:
        """Zero where it is absent or malformed."""
        counted = self.meta.quota.token_count if self.meta else _TokenCount()
        used = self.usage or TokenUsage(counted.input_tokens, counted.output_tokens)
        cached, written = used.cached_read_tokens or 0, used.cached_write_tokens or 0
        return Usage(
            input=(used.input_tokens or 0) + cached + written,
            output=used.output_tokens or 0,
            cached=cached,
            written=written,
            reasoning=used.thought_tokens or 0,
        )


class ToolCallUpdate(_AcpStruct, frozen=True):
    """A tool call or a change of one; absent fields are unchanged."""

    tool_call_id: str = ""
    title: str | None = None
    kind: str | None = None
    status: str | None = None
    content: Raw = NULL
    raw_input: Raw = NULL
    raw_output: Raw = NULL


class SessionUpdate(ToolCallUpdate, frozen=True):
    """Any `session/update`; which fields are present depends on its kind."""

    session_update: str = ""
    message_id: str | None = None
    entries: Raw = NULL
    current_mode_id: str | None = None
    unread: tuple[str, ...] = field(default=(), name=UNREAD)


class SessionNotification(_AcpStruct, frozen=True):
    """The parameters of `session/update`."""

    session_id: str = ""
    update: Raw = NULL


class PermissionOption(_AcpStruct, frozen=True):
    option_id: str = ""
    kind: str = ""


class PermissionRequest(_AcpStruct, frozen=True):
    """The parameters of `session/request_permission`."""

    session_id: str = ""
    tool_call: ToolCallUpdate = ToolCallUpdate()
    options: tuple[PermissionOption, ...] = ()
    unread: tuple[str, ...] = field(default=(), name=UNREAD)

    @property
    def unread_parts(self) -> tuple[str, ...]:
        """What cannot be read of that which a person would have to know. Such a request is denied."""
        call = self.tool_call
        says_nothing = not call.title and call.raw_input == NULL and call.content == NULL
        return tuple(name for name in self.unread if name.startswith("toolCall")) or (
            ("toolCall",) if says_nothing else ()
        )


class ContentBlock(_AcpStruct, frozen=True):
    """Content of a message, or of a tool call, where it is nested in another block."""

    type: str = ""
    text: str | None = None
    content: Raw = NULL
    path: str | None = None
    old_text: str | None = None
    new_text: str | None = None
    uri: str | None = None
    name: str | None = None
    data: str | None = None
    """Of an image, in Base64."""


class PlanEntry(_AcpStruct, frozen=True):
    content: str = ""
    status: str = ""


_update_decoder = LenientDecoder(SessionUpdate)
_permission_decoder = LenientDecoder(PermissionRequest)
_prompt_decoder = LenientDecoder(PromptResponse)


def parse_update(raw: Raw) -> SessionUpdate:
    update = _update_decoder.decode(raw)
    if update.session_update.endswith("_chunk"):
        block = decode_value(update.content, ContentBlock)
        if block is None or not block.type or (block.type == "text" and block.text is None):
            return replace(update, unread=(*update.unread, "content"))
    return update


def parse_permission_request(raw: Raw) -> PermissionRequest:
    return _permission_decoder.decode(raw)


def parse_prompt_response(raw: Raw) -> PromptResponse:
    return _prompt_decoder.decode(raw)


def parse_or_none(raw: Raw, kind: type[T]) -> T | None:
    """The value as this type, without fields of another type; None when it is something else."""
    return decode_value(raw, kind)


def parse_object(raw: Raw) -> dict[str, object]:
    """A JSON object; empty when it is anything else."""
    return parse_or_none(raw, cast("type[dict[str, object]]", dict)) or {}
