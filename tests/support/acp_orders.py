"""The orders in which real ACP agents report a call and request a permission for it, as acts of the scripted agent."""

from typing import Any

from tests.support.acp import text, tool

COMMAND = "ring the bell"
RAW = {"command": COMMAND}
ASK = {"toolCallId": "c1", "title": COMMAND, "kind": "execute", "status": "pending", "rawInput": RAW}
DIRECTORY = {**ASK, "kind": "other", "rawInput": {**RAW, "directories": ["/bells"]}}
RINGS = (
    "if-allowed",
    tool("c1", "in_progress"),
    ("effect", "rang"),
    tool("c1", "completed", content=text("it rang")),
)
NO_INPUT = {"title": f"terminal: {COMMAND}", "kind": "execute", "content": text(f"$ {COMMAND}")}
BY_ITSELF = (
    tool("c1", "pending", title="bash", kind="execute", rawInput={"cwd": "/work"}),
    tool("c1", "in_progress", title=COMMAND, rawInput={**RAW, "cwd": "/work"}),
)
ORDERS: dict[str, tuple[Any, ...]] = {
    "pending, then asked": (tool("c1", "pending", kind="execute", rawInput=RAW), ("ask", ASK), RINGS),
    "asked without a call": (("ask", ASK), RINGS),
    "running, then asked": (*BY_ITSELF, ("ask", ASK), RINGS),
    "asked twice": (*BY_ITSELF, ("ask", DIRECTORY), ("if-allowed", ("ask", ASK), RINGS)),
    "asked under another id": (
        ("update", {"sessionUpdate": "tool_call", "toolCallId": "c1", **NO_INPUT}),
        ("ask", {**ASK, "toolCallId": "perm-1", "title": f"dangerous: {COMMAND}"}),
        RINGS,
    ),
}
"""What agents send: claude-agent-acp, gemini-cli, opencode, opencode outside of its folder, and hermes-acp."""
