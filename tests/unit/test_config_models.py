"""Choosing models: from a name in the configuration to a wire, a URL and a key."""

from pathlib import Path

import pytest

from outrider.config.load import load
from outrider.config.models import PROVIDERS, WIRES, DefaultModel, ModelChoice, choose_models, default_model
from outrider.core.errors import Refused
from outrider.core.types import Prices

HOME = Path("/nonexistent")
Resolved = tuple[str, str, str, str, str]


def resolved(choice: ModelChoice) -> Resolved:
    return choice.name, choice.wire, choice.model, choice.url, choice.key.reveal()


def choices(environ: dict[str, str], name: str = "", home: Path = HOME, **flags: str) -> list[Resolved]:
    overrides = {f"model.{key}": value for key, value in flags.items()}
    return [resolved(choice) for choice in choose_models(load(home, environ, overrides), name)]


def refusal(environ: dict[str, str], name: str = "") -> str:
    with pytest.raises(Refused) as refused:
        choose_models(load(HOME, environ), name)
    return str(refused.value)


def test_a_provider_determines_wire_url_and_key() -> None:
    assert choices({"OUTRIDER_MODEL": "groq:openai/gpt-oss-120b", "GROQ_API_KEY": "g"}) == [
        ("groq:openai/gpt-oss-120b", "openai-chat", "openai/gpt-oss-120b", "https://api.groq.com/openai/v1", "g")
    ]
    assert choices({"OUTRIDER_MODEL": "openai:gpt-5.5", "OPENAI_API_KEY": "o"}) == [
        ("openai:gpt-5.5", "openai-responses", "gpt-5.5", "https://api.openai.com/v1", "o")
    ]
    assert choices({"OUTRIDER_MODEL": "gemini:x", "GOOGLE_API_KEY": "second"})[0][4] == "second"


def test_a_wire_uses_the_configured_url_and_key() -> None:
    environ = {"OUTRIDER_MODEL_URL": "http://127.0.0.1:9/v1/", "OUTRIDER_MODEL_KEY": "k"}
    for wire in ("openai-chat", "openai-responses", "anthropic"):
        assert choices(environ | {"OUTRIDER_MODEL": f"{wire}:m"}) == [
            (f"{wire}:m", wire, "m", "http://127.0.0.1:9/v1", "k")
        ]


def test_a_wire_without_a_url_uses_the_provider_that_defined_it() -> None:
    assert choices({"OUTRIDER_MODEL": "openai-chat:m", "OPENAI_API_KEY": "o"}) == [
        ("openai-chat:m", "openai-chat", "m", "https://api.openai.com/v1", "o")
    ]


def test_a_local_server_needs_no_key_and_a_tag_is_part_of_the_model_name() -> None:
    assert choices({"OUTRIDER_MODEL": "ollama:llama3.2:3b"}) == [
        ("ollama:llama3.2:3b", "openai-chat", "llama3.2:3b", "http://127.0.0.1:11434/v1", "")
    ]


def test_with_a_url_a_bare_name_means_openai_chat() -> None:
    environ = {"OUTRIDER_MODEL": "llama3.2:3b", "OUTRIDER_MODEL_URL": "http://127.0.0.1:9/v1"}
    assert choices(environ) == [("openai-chat:llama3.2:3b", "openai-chat", "llama3.2:3b", "http://127.0.0.1:9/v1", "")]


def test_a_providers_usual_key_is_not_sent_to_another_url() -> None:
    environ = {"OUTRIDER_MODEL": "openai:m", "OUTRIDER_MODEL_URL": "https://example.org/v1", "OPENAI_API_KEY": "o"}
    assert choices(environ) == [("openai:m", "openai-responses", "m", "https://example.org/v1", "")]


def test_the_url_and_key_of_one_model_are_not_used_for_a_model_of_another_provider(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text('[model]\nname = "openai-chat:m"\nurl = "http://127.0.0.1:9/v1"\nkey = "env:MINE"\nwindow = 9\n')
    environ = {"MINE": "mine", "ANTHROPIC_API_KEY": "a"}
    other = ("anthropic:c", "anthropic", "c", "https://api.anthropic.com", "a")
    sibling = ("openai-chat:n", "openai-chat", "n", "http://127.0.0.1:9/v1", "mine")
    assert choices(environ, "anthropic:c", tmp_path) == [other]
    assert choices(environ, "openai-chat:n", tmp_path) == [sibling]
    assert choices(environ | {"OUTRIDER_MODEL": "anthropic:c"}, "", tmp_path) == [other]
    assert [
        c.context_window for name in ("", "openai-chat:n") for c in choose_models(load(tmp_path, environ), name)
    ] == [9, 0]


def test_a_url_in_the_environment_applies_to_a_model_chosen_by_a_flag_when_no_other_is_named() -> None:
    config = load(HOME, {"OUTRIDER_MODEL_URL": "http://127.0.0.1:9/v1"}, {"model": "openai-chat:m"})
    assert [resolved(choice) for choice in choose_models(config)] == [
        ("openai-chat:m", "openai-chat", "m", "http://127.0.0.1:9/v1", "")
    ]


def test_fallbacks_follow_in_order_each_once_and_without_the_key_of_the_main_model() -> None:
    environ = {
        "OUTRIDER_MODEL": "anthropic:a",
        "OUTRIDER_MODEL_KEY": "k",
        "OUTRIDER_MODEL_FALLBACKS": "ollama:b, anthropic:a, practice, ollama:b",
        "OUTRIDER_MODEL_EFFORT": "high",
    }
    assert choices(environ) == [
        ("anthropic:a", "anthropic", "a", "https://api.anthropic.com", "k"),
        ("ollama:b", "openai-chat", "b", "http://127.0.0.1:11434/v1", ""),
        ("practice", "practice", "practice", "", ""),
    ]
    assert [choice.effort for choice in choose_models(load(HOME, environ))] == ["high", "", ""]


def test_a_choice_includes_the_request_settings() -> None:
    environ = {
        "OUTRIDER_MODEL": "ollama:m",
        "OUTRIDER_MODEL_WINDOW": "9",
        "OUTRIDER_MODEL_LONGEST": "8",
        "OUTRIDER_MODEL_EFFORT": "low",
        "OUTRIDER_MODEL_PATIENCE": "7",
        "OUTRIDER_MODEL_ATTEMPTS": "6",
        "OUTRIDER_MODEL_PRICE_INPUT": "1",
        "OUTRIDER_MODEL_PRICE_OUTPUT": "2",
    }
    (choice,) = choose_models(load(HOME, environ))
    assert (choice.context_window, choice.max_output_tokens, choice.effort, choice.idle_timeout, choice.attempts) == (
        9,
        8,
        "low",
        7.0,
        6,
    )
    assert choice.prices == Prices(1.0, 2.0)
    assert refusal(environ | {"OUTRIDER_MODEL_PRICE_OUTPUT": ""}) == (
        "model.price_input and model.price_output must be set together"
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gpt-5.5", "'gpt-5.5' names a model but no provider; write, for example, openai:gpt-5.5"),
        ("claude-opus-5", "'claude-opus-5' names a model but no provider; write, for example, anthropic:claude-opus-5"),
        ("qwen/qwen3", "'qwen/qwen3' names a model but no provider; write, for example, openrouter:qwen/qwen3"),
        ("llama3.2", "'llama3.2' names a model but no provider; write, for example, ollama:llama3.2"),
        ("openai", "'openai' names a provider or wire but no model; write openai:gpt-5.6-terra"),
        ("openai-chat:", "'openai-chat:' names a provider or wire but no model; write openai-chat:<model>"),
        ("anthropc:c", "there is no provider or wire 'anthropc'; did you mean anthropic:c?"),
        ("groq:m", "groq:m needs a key: set GROQ_API_KEY or OUTRIDER_MODEL_KEY"),
    ],
)
def test_an_invalid_name_is_refused_with_a_correction(name: str, message: str) -> None:
    assert refusal({"OUTRIDER_MODEL": name}) == message


def test_an_unknown_provider_is_refused_with_a_list_of_all() -> None:
    message = refusal({}, "zzzz:m")
    assert message.startswith("there is no provider or wire 'zzzz'; available: anthropic, openai, ")
    assert all(wire in message for wire in WIRES)


def test_the_wire_of_a_plugin_is_accepted_when_it_is_registered() -> None:
    (choice,) = choose_models(load(HOME, {}), "smoke:m", (*WIRES, "smoke"))
    assert resolved(choice) == ("smoke:m", "smoke", "m", "", "")


def test_a_url_or_key_without_a_model_is_refused() -> None:
    advice = "is set, but no model is: set OUTRIDER_MODEL, for example to openai-chat:<model>"
    assert refusal({"OUTRIDER_MODEL_URL": "http://127.0.0.1:9/v1"}) == f"model.url {advice}"
    assert refusal({"OUTRIDER_MODEL_KEY": "k", "OPENAI_API_KEY": "o"}) == f"model.key {advice}"


def test_a_key_with_a_broken_reference_is_not_replaced_by_another() -> None:
    environ = {"OUTRIDER_MODEL": "openai:m", "OUTRIDER_MODEL_KEY": "env:GONE", "OPENAI_API_KEY": "o"}
    assert refusal(environ) == "model.key is env:GONE, which is not set in the environment"


def test_without_a_model_a_key_selects_one_and_without_a_key_it_is_practice() -> None:
    assert choices({}) == [("practice", "practice", "practice", "", "")]
    assert default_model(load(HOME, {})) == DefaultModel("practice", "no model is configured and no API key is set")
    assert default_model(load(HOME, {"MISTRAL_API_KEY": "m"})) == DefaultModel(
        "mistral:mistral-medium-latest", "MISTRAL_API_KEY is set"
    )
    assert default_model(load(HOME, {"TOGETHER_API_KEY": "t"})).name == "practice"
    assert default_model(load(HOME, {"OUTRIDER_MODEL": "practice:x", "MISTRAL_API_KEY": "m"})) == DefaultModel(
        "practice:x", "environment OUTRIDER_MODEL"
    )


def test_practice_can_have_a_context_window_and_needs_no_key() -> None:
    (choice,) = choose_models(load(HOME, {"OUTRIDER_MODEL": "practice:x", "OUTRIDER_MODEL_WINDOW": "9"}))
    assert (*resolved(choice), choice.context_window) == ("practice:x", "practice", "x", "", "", 9)
    (choice,) = choose_models(load(HOME, {"OUTRIDER_MODEL_WINDOW": "9"}))
    assert (*resolved(choice), choice.context_window) == ("practice", "practice", "practice", "", "", 9)


def test_every_provider_has_a_known_wire_and_a_plain_url() -> None:
    assert {provider.wire for provider in PROVIDERS} <= set(WIRES)
    assert [
        p.url for p in PROVIDERS if p.url.endswith("/") or not p.url.startswith(("https://", "http://127.0.0.1"))
    ] == []
    assert [provider.name for provider in PROVIDERS if provider.is_local and provider.default_model] == []
