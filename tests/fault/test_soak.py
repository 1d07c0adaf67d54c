"""The short variant of `./dev soak`: random kills while messages arrive."""

from pathlib import Path

import pytest

from bench.soak import Verdict, soak


@pytest.mark.promise("L1")
@pytest.mark.promise("L3")
@pytest.mark.promise("L4")
def test_random_kills_lose_nothing_and_repeat_nothing(tmp_path: Path) -> None:
    verdict = soak(tmp_path, kills=6, messages=100, seed=7)
    assert verdict == Verdict(kills=6, acknowledged=100, lost=0, paid_twice=0, unpaid_unreported=0, unanswered=0)
