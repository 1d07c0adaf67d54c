"""Fail points: named places where a test can have the process killed; docs/promises.md lists them.

`OUTRIDER_FAIL=mid_reply` kills the process the first time `mid_reply` is reached, `OUTRIDER_FAIL=mid_reply:3` the third
time. While the variable is unset, a fail point is an empty call.
"""

import os
import signal
from collections import Counter
from collections.abc import Callable


def _arm(setting: str) -> Callable[[str], None]:
    if not setting:
        return lambda reached: None
    name, _, nth = setting.partition(":")
    hits: Counter[str] = Counter()

    def die(reached: str) -> None:
        hits[reached] += 1
        if reached == name and hits[reached] == int(nth or 1):
            os.kill(os.getpid(), signal.SIGKILL)

    return die


failpoint = _arm(os.environ.get("OUTRIDER_FAIL", ""))
"""Kill this process if the named fail point is armed."""
