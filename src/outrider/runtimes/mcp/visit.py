"""One call of a tool of ours that came over MCP: taken by the turn it belongs to, answered once."""

from collections.abc import Mapping

import anyio


class PendingCall:
    """A call that waits for its answer. Whoever takes it answers it; the end of its turn answers what is left."""

    def __init__(self, id: str, tool: str, args: Mapping[str, object]) -> None:
        self.id = id
        """What the other program calls this call; empty when it does not say."""
        self.tool = tool
        self.args = args
        self.text = ""
        self.failed = False
        self._answered = anyio.Event()

    def answer(self, text: str, *, failed: bool = False) -> None:
        """The first answer holds."""
        if not self._answered.is_set():
            self.text, self.failed = text, failed
            self._answered.set()

    async def wait(self) -> None:
        await self._answered.wait()
