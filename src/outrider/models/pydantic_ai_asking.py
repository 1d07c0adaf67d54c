"""Asks a provider through pydantic-ai's `Model`. Imported only when that wire is chosen: pydantic-ai is an extra."""

from collections.abc import Callable, Sequence
from typing import cast

import msgspec
from pydantic_ai.direct import model_request_stream
from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError, UnexpectedModelBehavior, UserError
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    ModelResponseStreamEvent,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
)
from pydantic_ai.models import Model as Provider
from pydantic_ai.models import ModelRequestParameters, infer_model
from pydantic_ai.providers import Provider as Access
from pydantic_ai.providers import infer_provider, infer_provider_class
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from outrider.config.choice import ModelChoice
from outrider.core.errors import Refused, Unavailable
from outrider.core.events import Delta, Reply
from outrider.core.parts import Reasoning, Usage
from outrider.core.ports import Blobs, Emit
from outrider.core.prompt import Prompt
from outrider.models.asking import traits_of
from outrider.models.draft import LENGTH_LIMIT, ReplyBuilder
from outrider.models.errors import ProviderEndpoint, failure, safe_line
from outrider.models.pydantic_ai_render import WIRE, PartMetadata, render_messages

_NORMAL_STOPS = {"stop", "tool_call", None}
_CUT_REASONS = {"length": LENGTH_LIMIT, "content_filter": "content filter"}


def infer_provider_model(choice: ModelChoice) -> Provider:
    """The model of this name. Raises Refused when it is unknown, not installed, or has no key."""

    def access(name: str) -> Access[object]:
        # A key that was set for Outrider wins over what the provider finds in the environment.
        make = cast("Callable[..., Access[object]]", infer_provider_class(name))
        return make(api_key=choice.key.reveal()) if choice.key else infer_provider(name)

    peer = _endpoint_of(choice)
    try:
        return infer_model(choice.model, access)
    except ImportError as error:
        told = safe_line(peer, str(error))
        raise Refused(f"{choice.name} needs an extra: pip install 'outrider[providers]' ({told})") from None
    except (UserError, ValueError, TypeError) as error:
        raise Refused(f"{choice.name} cannot be opened: {safe_line(peer, str(error))}") from None


class PydanticAiModel:
    """One model behind pydantic-ai."""

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
    draft = ReplyBuilder(lambda _: None)
    for part in response.parts:
        match part:
            case TextPart(content=text):
                draft.start_paragraph()
                draft.add_text(text)
                _add_metadata(
                    draft, "", PartMetadata("text", 0, part.id, None, part.provider_name, part.provider_details)
                )
            case ThinkingPart(content=text):
                extra = PartMetadata("thinking", 0, part.id, part.signature, part.provider_name, part.provider_details)
                _add_metadata(draft, text, extra)
            case ToolCallPart(tool_name=tool, args=args):
                extra = PartMetadata("call", len(draft.calls), part.id, None, part.provider_name, part.provider_details)
                _add_metadata(draft, "", extra)
                call = draft.start_call(tool)
                call.add_arguments(
                    args if isinstance(args, str) else msgspec.json.encode(args or {}, enc_hook=str).decode()
                )
            case _:
                pass
    usage = response.usage
    draft.usage = Usage(
        usage.input_tokens,
        usage.output_tokens,
        usage.cache_read_tokens,
        usage.cache_write_tokens,
        usage.details.get("reasoning_tokens", 0),
    )
    if response.finish_reason not in _NORMAL_STOPS:
        draft.cut = _CUT_REASONS.get(response.finish_reason or "", response.finish_reason or "")
    return draft


def _add_metadata(draft: ReplyBuilder, text: str, extra: PartMetadata) -> None:
    """What a provider wants back with a part: signatures of thinking, and of calls where it signs those."""
    if text or extra.signature or extra.details:
        draft.reasoning.append(Reasoning(text, WIRE, msgspec.json.encode(extra, enc_hook=str).decode()))
