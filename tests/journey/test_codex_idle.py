"""Processes of Codex that nobody uses: few are kept, and none for long."""

from pathlib import Path

import anyio
import pytest

from outrider.runtimes.codex import process_pool as pool
from tests.support.scripted_codex import ScriptedCodex

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]


async def test_of_many_idle_processes_the_newest_few_are_kept(tmp_path: Path) -> None:
    codex = ScriptedCodex(tmp_path)
    async with codex.opened() as agent:
        with anyio.fail_after(60):
            for number in range(pool.MAX_IDLE + 2):
                await agent.in_workspace(None).say("hi", session=f"s{number}")
            while len(codex.alive()) > pool.MAX_IDLE:
                await anyio.sleep(0.02)
            assert codex.alive() == codex.lives[-pool.MAX_IDLE :]
            assert (await agent.say("again", session="s0")).outcome == "done"


async def test_a_process_that_nobody_has_used_for_a_while_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "IDLE_TIMEOUT", 0.5)
    codex = ScriptedCodex(tmp_path)
    async with codex.opened() as agent:
        with anyio.fail_after(60):
            await agent.say("hi", session="s")
            while codex.alive():
                await anyio.sleep(0.02)
            assert (await agent.say("again", session="s")).outcome == "done"
    assert len(codex.lives) == 2
