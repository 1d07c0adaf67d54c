"""The tokens of Codex turns: as many as its model reported, also with compactions and after a restart."""

from pathlib import Path

import anyio
import pytest

from outrider.core.events import Reply
from outrider.core.types import Usage
from outrider.testing.scripted_model import says
from outrider.testing.scripted_server.script import Script, ScriptRule
from outrider.testing.scripted_server.server import open_scripted_server
from tests.support.codex import codex_home, open_codex, shell

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]
_LIMIT = 50_000
"""Codex compacts a thread whose last request had more tokens than this."""
_REPLIES = Script(
    rules=(
        ScriptRule("CONTEXT CHECKPOINT", ((says("PLUM", usage=Usage(7_000, 70)),),)),
        ScriptRule("PLUM", ((says("after the compaction", usage=Usage(300, 30)),),)),
        ScriptRule(
            "compact in the middle",
            (
                (says("", shell("true"), usage=Usage(1_000, 10, cached=500)),),
                (says("", shell("true"), usage=Usage(60_000, 20, reasoning=7)),),
            ),
        ),
        ScriptRule("short", ((says("short", usage=Usage(5, 6)),),)),
        ScriptRule("long", ((says("long", usage=Usage(70_000, 7)),),)),
        ScriptRule("compact first", ((says("done", usage=Usage(40, 4)),),)),
    )
)


@pytest.mark.needs("bubblewrap")
@pytest.mark.behaviour("A4")
async def test_the_tokens_of_each_turn_are_those_its_model_reported(tmp_path: Path) -> None:
    async with open_scripted_server(_REPLIES) as server:
        config = codex_home(tmp_path, server.url) / "config.toml"
        config.write_text(f"model_auto_compact_token_limit = {_LIMIT}\n" + config.read_text())
        used: list[Usage] = []
        with anyio.fail_after(90):
            for texts in (("compact in the middle", "short"), ("short", "long"), ("compact first", "short")):
                # Each time it is opened is a restart, and Codex resumes the thread in a new process.
                async with open_codex(tmp_path, server.url) as agent:
                    used += [(await agent.say(text, session="s")).usage for text in texts]
                    journal = await agent.journal(await agent.find("s"))
    assert used == [
        Usage(1_000 + 60_000 + 7_000 + 300, 10 + 20 + 70 + 30, cached=500, reasoning=7),
        Usage(5, 6),
        Usage(5, 6),
        Usage(70_000, 7),
        Usage(7_000 + 40, 70 + 4),
        Usage(5, 6),
    ]
    assert sum((entry.body.usage for entry in journal if isinstance(entry.body, Reply)), Usage()) == sum(used, Usage())
    assert len(server.requests) == 10
