"""Other providers (Gemini, Bedrock, Cohere, Mistral …) through pydantic-ai's `Model`.

pydantic-ai is an optional extra. Only `plugins.load` imports this module, when its wire is chosen; without the extra,
the import raises Refused.
"""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from random import random
from typing import cast

import msgspec
from msgspec import Struct

from outrider.config.models import ModelChoice
from outrider.core.errors import Refused, Unavailable
from outrider.core.events import Delta, Reply
from outrider.core.ports import Emit, Model
from outrider.core.prompt import AssistantMessage, Prompt, ToolMessage, UserMessage
from outrider.core.retry import RetryPolicy
from outrider.core.store_port import Blobs
from outrider.core.types import Call, Image, Reasoning, Usage
from outrider.models.encoding import (
    CONTINUE,
    IMAGE_UNAVAILABLE,
    NO_OUTPUT,
    SESSION_START,
    TOOL_IMAGE,
    call_arguments,
    decode_opaque,
    is_blank,
    tool_name,
    wire_id,
)
from outrider.models.errors import ProviderEndpoint, failure, safe_line
from outrider.models.http_model import traits_of
from outrider.models.reply_builder import LENGTH_LIMIT, ReplyBuilder
from outrider.models.resilience import RetryingModel

try:
    from pydantic_ai.direct import model_request_stream
    from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError, UnexpectedModelBehavior, UserError
    from pydantic_ai.messages import (
        BinaryContent,
        ModelMessage,
        ModelRequest,
        ModelRequestPart,
        ModelResponse,
        ModelResponsePart,
        ModelResponseStreamEvent,
        PartDeltaEvent,
        PartStartEvent,
        SystemPromptPart,
        TextPart,
        TextPartDelta,
        ThinkingPart,
        ThinkingPartDelta,
        ToolCallPart,
        ToolReturnPart,
        UserContent,
        UserPromptPart,
    )
    from pydantic_ai.models import Model as Provider
    from pydantic_ai.models import ModelRequestParameters, infer_model
    from pydantic_ai.providers import Provider as Access
    from pydantic_ai.providers import infer_provider, infer_provider_class
    from pydantic_ai.settings import ModelSettings
    from pydantic_ai.tools import ToolDefinition
except ImportError as error:
    raise Refused(
        f"this model needs an extra that is not installed ({error.name}): pip install 'outrider[providers]'"
    ) from None

WIRE = "pydantic-ai"


class PartMetadata(Struct, frozen=True, omit_defaults=True):
    """Data that a provider attached to one part of its reply and expects back."""

    kind: str
    """`thinking`, `text` or `call`."""
    at: int = 0
    """The index of the call."""
    id: str | None = None
    signature: str | None = None
    provider: str | None = None
    details: dict[str, object] | None = None


_decode_metadata = msgspec.json.Decoder(PartMetadata).decode


def render_messages(prompt: Prompt, blobs: Blobs) -> list[ModelMessage]:
    """The prompt as alternating requests and responses, a request first and last."""
    request: list[ModelRequestPart] = [] if is_blank(prompt.system) else [SystemPromptPart(prompt.system)]
    messages: list[ModelMessage] = []
    tools: dict[str, str] = {}
    has_content = False
    for message in prompt.messages:
        match message:
            case UserMessage(text=text, images=images):
                parts = _user_parts(text, images, blobs)
                request += parts
                has_content = has_content or bool(parts)
            case ToolMessage(results=results):
                for result in results:
                    text = NO_OUTPUT if is_blank(result.text) else result.text
                    request.append(ToolReturnPart(tools.get(result.call, "unknown"), text, wire_id(result.call)))
                images = tuple(image for result in results for image in result.images)
                request += _user_parts(TOOL_IMAGE, images, blobs) if images else []
                has_content = True
            case AssistantMessage():
                parts = _assistant_parts(message)
                if not parts:
                    continue
                tools = {call.id: tool_name(call.tool) for call in message.calls}
                if not has_content:
                    request.append(UserPromptPart(CONTINUE if messages else SESSION_START))
                messages += [ModelRequest(request), ModelResponse(parts)]
                request, has_content = [], False
    last = prompt.tail or ("" if has_content else CONTINUE)
    if last:
        request.append(UserPromptPart(last))
    return [*messages, ModelRequest(request)]


def _user_parts(text: str, images: tuple[Image, ...], blobs: Blobs) -> list[ModelRequestPart]:
    content: list[UserContent] = [] if is_blank(text) else [text]
    for image in images:
        try:
            content.append(BinaryContent(blobs.get(image.blob), media_type=image.media))
        except Refused:
            content.append(IMAGE_UNAVAILABLE)
    if not content:
        return []
    return [UserPromptPart(text if len(content) == 1 and not images else content)]


def _assistant_parts(message: AssistantMessage) -> list[ModelResponsePart]:
    thinking, text, calls = _parse_metadata(message.reasoning)
    parts: list[ModelResponsePart] = []
    if not is_blank(message.text):
        parts.append(TextPart(message.text, id=text.id, provider_name=text.provider, provider_details=text.details))
    parts += (_tool_call_part(call, calls.get(n, PartMetadata("call"))) for n, call in enumerate(message.calls))
    # Providers refuse thinking that is not followed by text or calls.
    return [*thinking, *parts] if parts else []


def _tool_call_part(call: Call, extra: PartMetadata) -> ToolCallPart:
    return ToolCallPart(
        tool_name(call.tool),
        call_arguments(call),
        wire_id(call.id),
        id=extra.id,
        provider_name=extra.provider,
        provider_details=extra.details,
    )


def _parse_metadata(
    reasoning: tuple[Reasoning, ...],
) -> tuple[list[ModelResponsePart], PartMetadata, Mapping[int, PartMetadata]]:
    thinking: list[ModelResponsePart] = []
    text, calls = PartMetadata("text"), dict[int, PartMetadata]()
    for part in reasoning:
        extra = decode_opaque(part, WIRE, _decode_metadata)
        if extra is None:
            continue
        match extra.kind:
            case "thinking":
                thinking.append(
                    ThinkingPart(
                        part.text,
                        id=extra.id,
                        signature=extra.signature,
                        provider_name=extra.provider,
                        provider_details=extra.details,
                    )
                )
            case "call":
                calls[extra.at] = extra
            case _:
                text = extra
    return thinking, text, calls


_NORMAL_STOPS = {"stop", "tool_call"}
_CUT_REASONS = {"length": LENGTH_LIMIT, "content_filter": "content filter"}


def infer_provider_model(choice: ModelChoice) -> Provider:
    """pydantic-ai's model of this name. Raises Refused if it is unknown, not installed, or has no key."""

    def access(name: str) -> Access[object]:
        # A key that is set for Outrider takes precedence over the environment.
        make = cast("Callable[..., Access[object]]", infer_provider_class(name))
        return make(api_key=choice.key.reveal()) if choice.key else infer_provider(name)

    endpoint = _endpoint_of(choice)
    try:
        return infer_model(choice.model, access)
    except ImportError as error:
        detail = safe_line(endpoint, str(error))
        raise Refused(f"{choice.name} needs an extra: pip install 'outrider[providers]' ({detail})") from None
    except (UserError, ValueError, TypeError) as error:
        raise Refused(f"{choice.name} cannot be opened: {safe_line(endpoint, str(error))}") from None


class PydanticAiModel:
    """A model that is called through pydantic-ai."""

    def __init__(self, provider: Provider, choice: ModelChoice, blobs: Blobs) -> None:
        self.traits = traits_of(choice)
        self._model = provider
        self._choice = choice
        self._blobs = blobs
        self._endpoint = _endpoint_of(choice)

    async def reply(self, prompt: Prompt, emit: Emit) -> Reply:
        try:
            response = await self._request(render_messages(prompt, self._blobs), _request_parameters(prompt), emit)
        except ModelHTTPError as error:
            body = error.body if isinstance(error.body, str) else msgspec.json.encode(error.body, enc_hook=str)
            raise failure(self._endpoint, error.status_code, body.encode() if isinstance(body, str) else body) from None
        except (ModelAPIError, UnexpectedModelBehavior) as error:
            raise Unavailable(f"{self._endpoint.host} failed: {safe_line(self._endpoint, str(error))}") from None
        except UserError as error:
            raise Refused(f"{self._choice.name}: {safe_line(self._endpoint, str(error))}") from None
        return _build_reply(response).build(prompt.saw, self._choice.name, self.traits.prices)

    async def _request(
        self, messages: Sequence[ModelMessage], parameters: ModelRequestParameters, emit: Emit
    ) -> ModelResponse:
        async with model_request_stream(
            self._model, messages, model_settings=self._settings(), model_request_parameters=parameters
        ) as stream:
            async for event in stream:
                _emit_event(event, emit)
            return stream.get()

    def _settings(self) -> ModelSettings:
        settings = ModelSettings(timeout=self._choice.idle_timeout)
        if self._choice.max_output_tokens:
            settings["max_tokens"] = self._choice.max_output_tokens
        match self._choice.effort:
            case "none":
                settings["thinking"] = False
            case "minimal" | "low" | "medium" | "high" | "xhigh" as effort:
                settings["thinking"] = effort
            case _:
                pass
        return settings


def _endpoint_of(choice: ModelChoice) -> ProviderEndpoint:
    return ProviderEndpoint(choice.model.partition(":")[0], choice.model, choice.key)


def _request_parameters(prompt: Prompt) -> ModelRequestParameters:
    tools = [
        ToolDefinition(name=tool.name, parameters_json_schema=tool.schema, description=tool.description, strict=False)
        for tool in prompt.tools
    ]
    return ModelRequestParameters(function_tools=tools, allow_text_output=True)


def _emit_event(event: ModelResponseStreamEvent, emit: Emit) -> None:
    match event:
        case PartStartEvent(part=TextPart(content=text)) | PartDeltaEvent(delta=TextPartDelta(content_delta=text)):
            if text:
                emit(Delta(text))
        case (
            PartStartEvent(part=ThinkingPart(content=text))
            | PartDeltaEvent(delta=ThinkingPartDelta(content_delta=text))
        ):
            if text:
                emit(Delta(text, "reasoning"))
        case PartStartEvent(part=ToolCallPart(tool_name=tool)):
            emit(Delta(tool, "call"))
        case _:
            pass


def _build_reply(response: ModelResponse) -> ReplyBuilder:
    builder = ReplyBuilder(lambda _: None)
    for part in response.parts:
        match part:
            case TextPart(content=text):
                builder.start_paragraph()
                builder.add_text(text)
                metadata = PartMetadata("text", 0, part.id, None, part.provider_name, part.provider_details)
                _add_metadata(builder, "", metadata)
            case ThinkingPart(content=text, signature=signature):
                metadata = PartMetadata("thinking", 0, part.id, signature, part.provider_name, part.provider_details)
                _add_metadata(builder, text, metadata)
            case ToolCallPart(tool_name=tool, args=args):
                index = len(builder.calls)
                metadata = PartMetadata("call", index, part.id, None, part.provider_name, part.provider_details)
                _add_metadata(builder, "", metadata)
                builder.start_call(tool).add_arguments(
                    args if isinstance(args, str) else msgspec.json.encode(args or {}, enc_hook=str).decode()
                )
            case _:
                pass
    usage = response.usage
    builder.set_usage(
        Usage(
            usage.input_tokens,
            usage.output_tokens,
            usage.cache_read_tokens,
            usage.cache_write_tokens,
            usage.details.get("reasoning_tokens", 0),
        )
    )
    if response.finish_reason and response.finish_reason not in _NORMAL_STOPS:
        builder.set_cut(_CUT_REASONS.get(response.finish_reason, response.finish_reason))
    return builder


def _add_metadata(builder: ReplyBuilder, text: str, metadata: PartMetadata) -> None:
    """Keep what the provider expects back with a part, such as the signature of thinking or of a call."""
    if text or metadata.signature or metadata.details:
        builder.add_reasoning(Reasoning(text, WIRE, msgspec.json.encode(metadata, enc_hook=str).decode()))


@asynccontextmanager
async def open_model(choice: ModelChoice, blobs: Blobs) -> AsyncGenerator[Model, None]:
    """pydantic-ai's model of this name, e.g. `google:gemini-3-pro`. Its key may come from the environment."""
    provider: Provider = infer_provider_model(choice)
    async with provider:
        yield RetryingModel(PydanticAiModel(provider, choice, blobs), RetryPolicy(attempts=choice.attempts), random)
