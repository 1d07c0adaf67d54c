"""Fail points: places where a test may have the process killed, named in the fault matrix of docs/promises.md.

`OUTRIDER_FAIL=J5` kills at the first visit of J5, `OUTRIDER_FAIL=J5:3` at the third. Unset, a point is an empty call.
"""

import os
import signal
from collections import Counter
from collections.abc import Callable


def _arm(wish: str) -> Callable[[str], None]:
    if not wish:
        return lambda name: None
    name, _, nth = wish.partition(":")
    visits: Counter[str] = Counter()

    def point(here: str) -> None:
        visits[here] += 1
        if here == name and visits[here] == int(nth or 1):
            os.kill(os.getpid(), signal.SIGKILL)

    return point


failpoint = _arm(os.environ.get("OUTRIDER_FAIL", ""))
"""Die here if this point is armed."""
