"""How a runtime is looked into: an entry point `outrider.runtime_checks` names an `Examine`, by the runtime's name."""

from collections.abc import AsyncGenerator, Callable
from typing import Literal

from msgspec import Struct

from outrider.config.load import Config

ProbeVerdict = Literal["fine", "odd", "broken"]


class ProbeResult(Struct, frozen=True):
    """One finding."""

    name: str
    """What was looked at. Of runtimes: `program`, `version`, `start`, `login`."""
    verdict: ProbeVerdict
    text: str
    advice: str = ""


class RuntimeProbe(Struct, frozen=True):
    """What can be found out about a runtime before it carries a turn."""

    locate: Callable[[Config], str]
    """Where its program is. Starts nothing. Raises Refused with how to get it."""
    checks: Callable[[Config], AsyncGenerator[ProbeResult, None]]
    """Really tries it, step by step, and ends what it started. Raises nothing; the first that is broken is the last."""
    takes_client_tools: bool = False
    """As in its traits: whether tools of whoever sent an input can be used in its turns."""
    steers: bool = False
    """As in its traits: whether what is said in the midst of a turn reaches it at once."""
    quick_checks: Callable[[Config], AsyncGenerator[ProbeResult, None]] | None = None
    """As `checks`, for a list of all runtimes, where trying leaves a trace in it; None where it leaves none."""
