"""A client that sent its own tools and never returned their results: its session can be continued from a terminal."""

from pathlib import Path
from typing import Any

import pytest

from outrider.testing.scripted_model import call, says
from outrider.testing.scripted_server.script import script
from outrider.testing.scripted_server.server import ScriptedServer
from tests.support.in_process import InProcessPerson as Person
from tests.support.up import up

RING: dict[str, Any] = {"type": "function", "function": {"name": "ring", "parameters": {"type": "object"}}}
ORDER: dict[str, Any] = {"messages": [{"role": "user", "content": "ring the bell"}], "tools": [RING]}


@pytest.mark.parametrize("is_running", [True, False], ids=["server running", "server stopped"])
def test_a_session_that_waits_for_a_client_can_be_continued_from_a_terminal(tmp_path: Path, is_running: bool) -> None:
    person = Person(tmp_path)
    with ScriptedServer(script(says("", call("ring")), says("then not"), says("still here"))) as model:
        person.uses(model.url)
        with up(person) as running, running.client() as client:
            response = client.post("/v1/chat/completions", json=ORDER, headers={"x-session-id": "bells"})
            assert response.json()["choices"][0]["finish_reason"] == "tool_calls"
            if not is_running:
                running.ends()
            ran = person.types("run", "--session", "bells", "leave it")
            again = person.types("run", "--session", "bells", "hello?")
    assert [(each.code, each.out) for each in (ran, again)] == [(0, "then not\n"), (0, "still here\n")]
