"""A web search of Codex's model, which its provider runs: the journal has it with its query."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anyio
import pytest

from outrider.core.prompt import AssistantMessage, transcript
from tests.support.codex import open_codex, summarize

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]
_ACTIONS: tuple[dict[str, str], ...] = (
    {"type": "search", "query": "price of plums"},
    {"type": "open_page", "url": "https://shop.test/plums"},
)


class _SearchingProvider(BaseHTTPRequestHandler):
    """Answers every request with two searches, whose actions come only at their end, and a message."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        self._send("response.created", response={"id": "r"})
        for n, action in enumerate(_ACTIONS):
            begun = {"type": "web_search_call", "id": f"ws_{n}", "status": "in_progress"}
            self._send("response.output_item.added", output_index=n, item=begun)
            self._send(
                "response.output_item.done", output_index=n, item={**begun, "status": "completed", "action": action}
            )
        message = {"type": "message", "id": "m", "role": "assistant"}
        content = [{"type": "output_text", "text": "3 a kilo"}]
        self._send("response.output_item.done", output_index=len(_ACTIONS), item={**message, "content": content})
        usage = {"input_tokens": 5, "output_tokens": 3, "total_tokens": 8}
        self._send("response.completed", response={"id": "r", "usage": usage})

    def _send(self, kind: str, **fields: Any) -> None:
        self.wfile.write(f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing to stderr."""


@pytest.fixture
def provider() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _SearchingProvider) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()
        thread.join()


@pytest.mark.behaviour("A3")
async def test_a_search_is_recorded_with_what_was_searched(tmp_path: Path, provider: str) -> None:
    async with open_codex(tmp_path, provider) as agent:
        with anyio.fail_after(60):
            done = await agent.say("how much are plums?", session="s")
            journal = await agent.journal(await agent.find("s"))
    assert (done.outcome, done.text) == ("done", "3 a kilo")
    calls = [call for m in transcript(journal) if isinstance(m, AssistantMessage) for call in m.calls]
    assert [(call.tool, call.args) for call in calls] == [
        ("web_search", {"query": "price of plums"}),
        ("web_search", {"query": "https://shop.test/plums"}),
    ]
    assert [line for line in summarize(journal) if line.startswith(("reply", "result"))] == [
        "reply web_search",
        "result done",
        "reply web_search",
        "result done",
        "reply 3 a kilo",
    ]
