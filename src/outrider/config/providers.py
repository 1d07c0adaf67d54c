"""Known providers: which wire each speaks, where, and where people usually keep its key."""

from msgspec import Struct

PRACTICE = "practice"


class ProviderPreset(Struct, frozen=True):
    """A place that has models."""

    name: str
    wire: str
    url: str
    key_variables: tuple[str, ...] = ()
    """The environment variables its key is usually in; empty when it needs none."""
    default_model: str = ""
    """The model to take when only a key is found; empty when a key alone picks nothing."""
    model_prefixes: tuple[str, ...] = ()
    """How the names of its own models begin."""

    @property
    def is_local(self) -> bool:
        """Whether it is a program on this machine."""
        return not self.key_variables


PROVIDERS: tuple[ProviderPreset, ...] = (
    ProviderPreset(
        "anthropic",
        "anthropic",
        "https://api.anthropic.com",
        ("ANTHROPIC_API_KEY",),
        "claude-sonnet-5",
        ("claude",),
    ),
    ProviderPreset(
        "openai",
        "openai-responses",
        "https://api.openai.com/v1",
        ("OPENAI_API_KEY",),
        "gpt-5.6-terra",
        ("gpt-", "chatgpt", "o1", "o3", "o4"),
    ),
    ProviderPreset(
        "openrouter", "openai-chat", "https://openrouter.ai/api/v1", ("OPENROUTER_API_KEY",), "openrouter/auto"
    ),
    ProviderPreset(
        "gemini",
        "openai-chat",
        "https://generativelanguage.googleapis.com/v1beta/openai",
        ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        "gemini-3.7-flash",
        ("gemini",),
    ),
    ProviderPreset(
        "deepseek",
        "openai-chat",
        "https://api.deepseek.com",
        ("DEEPSEEK_API_KEY",),
        "deepseek-flash",
        ("deepseek",),
    ),
    ProviderPreset(
        "mistral",
        "openai-chat",
        "https://api.mistral.ai/v1",
        ("MISTRAL_API_KEY",),
        "mistral-medium-latest",
        ("mistral", "ministral", "magistral", "codestral", "devstral"),
    ),
    ProviderPreset("groq", "openai-chat", "https://api.groq.com/openai/v1", ("GROQ_API_KEY",), "openai/gpt-oss-120b"),
    ProviderPreset("xai", "openai-chat", "https://api.x.ai/v1", ("XAI_API_KEY",), "grok-4.5", ("grok",)),
    ProviderPreset(
        "moonshot",
        "openai-chat",
        "https://api.moonshot.ai/v1",
        ("MOONSHOT_API_KEY", "MOONSHOTAI_API_KEY"),
        "kimi-k2.6",
        ("kimi", "moonshot"),
    ),
    ProviderPreset("zai", "openai-chat", "https://api.z.ai/api/paas/v4", ("ZAI_API_KEY",), "glm-5.1", ("glm",)),
    ProviderPreset("together", "openai-chat", "https://api.together.xyz/v1", ("TOGETHER_API_KEY",)),
    ProviderPreset("fireworks", "openai-chat", "https://api.fireworks.ai/inference/v1", ("FIREWORKS_API_KEY",)),
    ProviderPreset("cerebras", "openai-chat", "https://api.cerebras.ai/v1", ("CEREBRAS_API_KEY",)),
    ProviderPreset("ollama", "openai-chat", "http://127.0.0.1:11434/v1"),
    ProviderPreset("lmstudio", "openai-chat", "http://127.0.0.1:1234/v1"),
    ProviderPreset("llamacpp", "openai-chat", "http://127.0.0.1:8080/v1"),
    ProviderPreset("vllm", "openai-chat", "http://127.0.0.1:8000/v1"),
)
"""In the order in which a found key picks one."""

PROVIDERS_BY_NAME = {provider.name: provider for provider in PROVIDERS}

WIRES = ("openai-chat", "openai-responses", "anthropic", PRACTICE, "pydantic-ai")

WIRE_PROVIDERS = {"openai-chat": "openai", "openai-responses": "openai", "anthropic": "anthropic"}
"""Whose address and key a wire takes when nothing else is said."""

KEY_VARIABLES = frozenset(key for provider in PROVIDERS for key in provider.key_variables)
