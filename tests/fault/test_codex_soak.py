"""The short variant of `./dev soak codex`: Codex is killed at random moments of its turns."""

from pathlib import Path

import pytest

from bench.codex_soak import soak
from tests.support.codex import codex_binary


@pytest.mark.needs("bubblewrap")
@pytest.mark.anyio
@pytest.mark.timeout(180)
@pytest.mark.promise("L3")
@pytest.mark.promise("L4")
@pytest.mark.promise("L7")
@pytest.mark.behaviour("A10")
async def test_repeated_kills_of_codex_lose_no_work_and_leave_no_process(tmp_path: Path) -> None:
    codex_binary()
    verdict = await soak(tmp_path, turns=20, kills=5, seed=7)
    assert (verdict.turns, verdict.done + verdict.failed, verdict.is_bad) == (20, 20, False), verdict
