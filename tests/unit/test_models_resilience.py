"""Tests of retries and fallbacks."""

from collections.abc import Callable

import pytest

from outrider.config.models import ModelChoice
from outrider.core.errors import ContextTooLong, Refused, Unavailable
from outrider.core.events import Delta, Reply
from outrider.core.ports import Emit
from outrider.core.prompt import Prompt, UserMessage
from outrider.core.retry import RetryPolicy
from outrider.core.types import ModelTraits
from outrider.models.errors import ProviderRefused
from outrider.models.http_model import traits_of
from outrider.models.prices import model_facts
from outrider.models.resilience import FallbackModel, RetryingModel, open_models

pytestmark = pytest.mark.anyio
PROMPT = Prompt("", [UserMessage("hi")], (), 1)


class ActingModel:
    """A model with a list of actions: it answers with a text, or raises an error after some words."""

    def __init__(self, name: str, *outcomes: str | Exception, window: int = 0) -> None:
        self.traits = ModelTraits(name, "acting", window)
        self.prompts = 0
        self._outcomes = list(outcomes)

    async def reply(self, prompt: Prompt, emit: Emit) -> Reply:
        self.prompts += 1
        outcome = self._outcomes.pop(0)
        if isinstance(outcome, Exception):
            if "mid" in str(outcome):
                emit(Delta("half a "))
            raise outcome
        emit(Delta(outcome))
        return Reply(outcome, prompt.saw, model=self.traits.name)


class Clock:
    def __init__(self) -> None:
        self.waits: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)


def retrying(model: ActingModel, clock: Clock, attempts: int = 3) -> RetryingModel:
    return RetryingModel(model, RetryPolicy(attempts=attempts, first=1.0), lambda: 1.0, clock.sleep)


async def test_a_busy_provider_is_retried_and_readers_are_notified() -> None:
    clock, deltas = Clock(), list[Delta]()
    model = ActingModel("a", Unavailable("h is busy (429)", 2.0), Unavailable("h broke mid reply"), "hello")
    assert await retrying(model, clock).reply(PROMPT, deltas.append) == Reply("hello", 1, model="a")
    assert clock.waits == [2.0, 2.0]
    assert deltas == [
        Delta("h is busy (429), retrying in 2 s", "note"),
        Delta("half a "),
        Delta("h broke mid reply", "reset"),
        Delta("h broke mid reply, retrying in 2 s", "note"),
        Delta("hello"),
    ]


async def test_the_last_error_says_how_many_attempts_were_made() -> None:
    clock = Clock()
    model = ActingModel("a", *[Unavailable("h is busy (429)")] * 3)
    with pytest.raises(Unavailable) as caught:
        await retrying(model, clock).reply(PROMPT, lambda _: None)
    assert str(caught.value) == "h is busy (429) (3 attempts)"
    assert clock.waits == [1.0, 2.0]


async def test_a_wait_that_is_too_long_is_not_waited_for() -> None:
    clock = Clock()
    model = ActingModel("a", Unavailable("h is busy (429)", 3600.0))
    with pytest.raises(Unavailable) as caught:
        await retrying(model, clock).reply(PROMPT, lambda _: None)
    assert (str(caught.value), caught.value.retry_after, clock.waits) == (
        "h is busy (429) (1 attempt)",
        3600.0,
        [],
    )


async def test_a_refusal_is_not_retried() -> None:
    model = ActingModel("a", Refused("no"), "hello")
    with pytest.raises(Refused, match="no"):
        await retrying(model, Clock()).reply(PROMPT, lambda _: None)
    assert model.prompts == 1


@pytest.mark.parametrize("error", [Unavailable("h broke mid reply"), ProviderRefused("h did not accept the key")])
async def test_the_next_model_answers_when_the_first_cannot(error: Exception) -> None:
    deltas = list[Delta]()
    chain = FallbackModel([ActingModel("a", error), ActingModel("b", "hello")])
    assert await chain.reply(PROMPT, deltas.append) == Reply("hello", 1, model="b")
    note = Delta(f"{error}; trying b instead", "note")
    shown = [Delta("half a "), Delta(str(error), "reset")] if "mid" in str(error) else []
    assert deltas == [*shown, note, Delta("hello")]
    assert chain.traits.name == "a"


async def test_a_refused_request_is_not_tried_with_the_next_model() -> None:
    second = ActingModel("b", "hello")
    with pytest.raises(Refused, match="bad field"):
        await FallbackModel([ActingModel("a", Refused("bad field")), second]).reply(PROMPT, lambda _: None)
    assert second.prompts == 0


@pytest.mark.parametrize(("window", "asked"), [(1000, 1), (100, 0)])
async def test_a_prompt_that_is_too_long_goes_to_a_model_with_a_larger_window(window: int, asked: int) -> None:
    second = ActingModel("b", "hello", window=window)
    chain = FallbackModel([ActingModel("a", ContextTooLong("too long"), window=100), second])
    if asked:
        assert (await chain.reply(PROMPT, lambda _: None)).model == "b"
    else:
        with pytest.raises(ContextTooLong, match="too long"):
            await chain.reply(PROMPT, lambda _: None)
    assert second.prompts == asked


async def test_if_all_models_fail_the_error_names_each_and_when_to_retry() -> None:
    chain = FallbackModel(
        [ActingModel("a", Unavailable("h is busy", 9.0)), ActingModel("b", ProviderRefused("no key"))]
    )
    with pytest.raises(Unavailable) as caught:
        await chain.reply(PROMPT, lambda _: None)
    assert (str(caught.value), caught.value.retry_after) == ("a: h is busy; b: no key", 9.0)
    with pytest.raises(Refused, match="a: no key; b: no credit"):
        await FallbackModel(
            [ActingModel("a", ProviderRefused("no key")), ActingModel("b", ProviderRefused("no credit"))]
        ).reply(PROMPT, lambda _: None)


class NoBlobs:
    def put(self, content: bytes) -> str:
        return ""

    def get(self, name: str) -> bytes:
        raise Refused(f"no blob {name}")


async def test_models_are_opened_by_the_name_of_their_wire() -> None:
    one = ModelChoice("first", "openai-chat", "gpt-5")
    two = ModelChoice("second", "anthropic", "claude-opus-5")
    async with open_models([one, two], NoBlobs()) as model:
        assert isinstance(model, FallbackModel)
        assert model.traits == traits_of(one)
    async with open_models([two], NoBlobs()) as model:
        assert isinstance(model, RetryingModel)
        assert model.traits == traits_of(two)


@pytest.mark.parametrize("choices", [[], [ModelChoice("x", "morse", "m")]])
async def test_a_model_that_cannot_be_opened_is_refused(choices: list[ModelChoice]) -> None:
    with pytest.raises(Refused):
        async with open_models(choices, NoBlobs()):
            pass


def test_well_known_models_have_a_window_and_prices_that_settings_override() -> None:
    facts = model_facts("claude-opus-5")
    assert facts
    assert facts.window == 1_000_000
    same: list[Callable[[], object]] = [
        lambda: model_facts("anthropic/claude-opus-5"),
        lambda: model_facts("claude-opus-5-20260724"),
        lambda: model_facts("claude-opus-5-latest"),
    ]
    assert [find() for find in same] == [facts] * 3
    assert model_facts("gpt-5-2025-08-07") == model_facts("gpt-5")
    assert model_facts("gpt-5-imaginary") is None
    assert traits_of(ModelChoice("n", "anthropic", "claude-opus-5", context_window=9)) == ModelTraits(
        "n", "anthropic", 9, prices=facts.prices
    )
    assert traits_of(ModelChoice("n", "openai-chat", "llama")) == ModelTraits("n", "openai-chat")
