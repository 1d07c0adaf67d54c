"""A minimal client of `codex app-server`: the baseline for measuring our runtime.

It has no tasks: a caller that waits for a message reads lines and queues those that are meant for others.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

Json = dict[str, Any]

LONGEST = 256 * 1024 * 1024
"""Bytes of a line: Codex sets no bound, and a resumed thread comes as one."""
OFFLINE = (
    "analytics.enabled=false",
    "feedback.enabled=false",
    "features.plugins=false",
    "features.apps=false",
    "features.unbounded_connection_retries=false",
    'shell_environment_policy.inherit="core"',
)


def provider(url: str, model: str = "gpt-5.5") -> Sequence[str]:
    """The settings with which Codex uses the Responses API at this address only."""
    fields = (
        'name="local"',
        f'base_url="{url}"',
        'wire_api="responses"',
        "requires_openai_auth=false",
        "supports_websockets=false",
        "request_max_retries=0",
        "stream_max_retries=0",
        "stream_idle_timeout_ms=5000",
    )
    return (
        f'model="{model}"',
        'model_provider="local"',
        *(f"model_providers.local.{field}" for field in fields),
        *OFFLINE,
    )


class Rejected(Exception):
    """Codex answered a request with an error."""

    def __init__(self, error: Json) -> None:
        super().__init__(error.get("message", ""))
        self.error = error


class BareCodex:
    """One app-server process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        if process.stdin is None or process.stdout is None:
            raise ValueError("the process needs pipes")
        self.process = process
        self._in = process.stdin
        self._out = process.stdout
        self._asked = 0
        self._buffer: deque[Json] = deque()

    async def send(self, message: Json) -> None:
        self._in.write(msgspec.json.encode(message) + b"\n")
        await self._in.drain()

    async def read(self) -> Json:
        """The next notification or request of the server. Raises EOFError when it is gone."""
        return self._buffer.popleft() if self._buffer else await self._line()

    async def _line(self) -> Json:
        line = await self._out.readline()
        if not line:
            raise EOFError("codex app-server ended")
        return msgspec.json.decode(line, type=Json)

    async def ask(self, method: str, **params: Any) -> Json:
        """The result of a request; what comes before it is kept for `read`. Raises Rejected."""
        self._asked += 1
        number = self._asked
        await self.send({"method": method, "id": number, "params": params})
        while True:
            message = await self._line()
            if message.get("id") != number or "method" in message:
                self._buffer.append(message)
            elif "error" in message:
                raise Rejected(message["error"])
            else:
                return message["result"]

    async def start_thread(self, cwd: Path, **params: Any) -> str:
        started = await self.ask("thread/start", cwd=str(cwd), **params)
        return started["thread"]["id"]

    async def turn(self, thread: str, text: str) -> tuple[str, Sequence[Json]]:
        """Runs a turn to its end: its status and its completed items. A question of the server's is accepted."""
        asked = await self.ask("turn/start", threadId=thread, input=[{"type": "text", "text": text}])
        items: list[Json] = []
        while True:
            message = await self.read()
            params: Json = message.get("params", {})
            if "id" in message:
                await self.send({"id": message["id"], "result": {"decision": "accept"}})
            elif params.get("threadId") != thread:
                continue
            elif message["method"] == "item/completed":
                items.append(params["item"])
            elif message["method"] == "turn/completed" and params["turn"]["id"] == asked["turn"]["id"]:
                return params["turn"]["status"], items


@asynccontextmanager
async def codex(
    binary: str, home: Path, settings: Sequence[str], more: Mapping[str, str] | None = None
) -> AsyncGenerator[BareCodex]:
    """A server after its handshake; it is ended when the block is left."""
    args = [arg for setting in settings for arg in ("-c", setting)]
    process = await asyncio.create_subprocess_exec(
        binary,
        "app-server",
        *args,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={"CODEX_HOME": str(home), "HOME": str(home), "PATH": "/usr/local/bin:/usr/bin:/bin", **(more or {})},
        limit=LONGEST,
    )
    client = BareCodex(process)
    try:
        who = {"name": "bare", "title": "bare", "version": "1"}
        await client.ask("initialize", clientInfo=who, capabilities={"experimentalApi": True})
        await client.send({"method": "initialized"})
        yield client
    finally:
        if process.stdin is not None:
            process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), 5)
        except TimeoutError:
            process.kill()
            await process.wait()
