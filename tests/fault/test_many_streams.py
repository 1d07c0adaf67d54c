"""Hundreds of streams at once from a real `outrider up`: each is complete and in order, in bounded memory.

`./dev bench api` does the same with more of them, and with figures.
"""

from pathlib import Path

import pytest

from bench.api import SCRIPT, SETTINGS, Asker, is_story
from bench.load import load
from bench.serving import Home, model

pytestmark = [pytest.mark.anyio, pytest.mark.promise("L7")]

STREAMS = 200
ROOM = 80
"""Memory of that many streams, in MiB."""


async def test_hundreds_of_streams_at_once_are_complete_and_in_order_in_bounded_memory(tmp_path: Path) -> None:
    with model(tmp_path, SCRIPT) as (_, url):
        home = Home(tmp_path, url, SETTINGS)
        with home.up() as (up, ours):
            asker = Asker(home.headers)
            await load(ours, 1, 1, asker.story, is_story)
            before = up.resident
            load_result = await load(ours, STREAMS, 1, asker.story, is_story)
            held = up.resident
    assert len(load_result.responses) == STREAMS
    assert held - before < ROOM
