"""List prices and context windows of well-known models, as their providers listed them in November 2026.

Prices are for prompts of ordinary length. `ModelChoice.prices` and `ModelChoice.context_window` override them.
"""

import re
from typing import NamedTuple

from outrider.core.types import Prices


class ModelFacts(NamedTuple):
    """The context window and prices of one model."""

    window: int
    prices: Prices | None


def _row(
    window: int, input: float, output: float, cached: float | None = None, written: float | None = None
) -> ModelFacts:
    return ModelFacts(window, Prices(input, output, cached, written))


_M = 1_000_000
_TABLE = {
    "claude-fable-5": _row(_M, 10, 50, 1, 12.5),
    "claude-fable-5-1": _row(_M, 10, 50, 0.25, 12.5),
    "claude-haiku-4-5": _row(200_000, 1, 5, 0.1, 1.25),
    "claude-haiku-5-5": ModelFacts(_M, None),
    "claude-opus-4-5": _row(200_000, 5, 25, 0.5, 6.25),
    "claude-opus-4-6": _row(_M, 5, 25, 0.5, 6.25),
    "claude-opus-4-7": _row(_M, 5, 25, 0.5, 6.25),
    "claude-opus-4-8": _row(_M, 5, 25, 0.5, 6.25),
    "claude-opus-5": _row(_M, 5, 25, 0.5, 6.25),
    "claude-opus-5-5": _row(_M, 4, 20, 0.2, 5),
    "claude-sonnet-4-5": _row(200_000, 3, 15, 0.3, 3.75),
    "claude-sonnet-4-6": _row(_M, 3, 15, 0.3, 3.75),
    "claude-sonnet-5": _row(_M, 2, 10, 0.2, 2.5),
    "claude-sonnet-5-5": _row(_M, 2, 10, 0.1, 2.5),
    "gpt-4.1": _row(_M, 2, 8, 0.5),
    "gpt-4.1-mini": _row(_M, 0.4, 1.6, 0.1),
    "gpt-4.1-nano": _row(_M, 0.1, 0.4, 0.025),
    "gpt-4o": _row(128_000, 2.5, 10, 1.25),
    "gpt-4o-mini": _row(128_000, 0.15, 0.6, 0.075),
    "gpt-5": _row(400_000, 1.25, 10, 0.125),
    "gpt-5-mini": _row(400_000, 0.25, 2, 0.025),
    "gpt-5-nano": _row(400_000, 0.05, 0.4, 0.005),
    "gpt-5.1": _row(400_000, 1.25, 10, 0.125),
    "gpt-5.2": _row(400_000, 1.75, 14, 0.175),
    "gpt-5.3-codex": _row(400_000, 1.75, 14, 0.175),
    "gpt-5.4": _row(1_050_000, 2.5, 15, 0.25),
    "gpt-5.4-mini": _row(400_000, 0.75, 4.5, 0.075),
    "gpt-5.4-nano": _row(400_000, 0.2, 1.25, 0.02),
    "gpt-5.5": _row(_M, 5, 30, 0.5),
    "gpt-5.6-luna": _row(1_050_000, 0.2, 1.2, 0.02, 0.25),
    "gpt-5.6-sol": _row(1_050_000, 4, 20, 0.4, 5),
    "gpt-5.6-terra": _row(1_050_000, 2, 12, 0.2, 2.5),
    "gpt-6-astra": _row(1_050_000, 10, 50, 1, 12.5),
    "gpt-6-luna": _row(1_050_000, 0.1, 0.5, 0.01, 0.125),
    "gpt-6-sol": _row(1_050_000, 2, 10, 0.2, 2.5),
    "gpt-6.1-sol": _row(1_050_000, 2, 10, 0.1, 2.5),
    "gpt-6.1-terra": _row(1_050_000, 1, 5, 0.05, 1.25),
    "kimi-k2.6": _row(262_144, 0.95, 4, 0.16),
    "kimi-k3": _row(1_048_576, 3, 15, 0.3, 3),
    "o4-mini": _row(200_000, 1.1, 4.4, 0.275),
}
_DATED = re.compile(r"(-latest|[-@]20\d\d-?\d\d-?\d\d)$")


def model_facts(model: str) -> ModelFacts | None:
    """The facts on a model by its provider's name for it, or None. A date at the end of the name is ignored."""
    name = _DATED.sub("", model.rsplit("/", 1)[-1].lower())
    return _TABLE.get(name.replace(".", "-") if name.startswith("claude") else name)
