"""Our tools in another program's turn, over MCP: a small server of our own process, on loopback, behind tokens."""

from outrider.runtimes.mcp.door import McpServer, McpSession
from outrider.runtimes.mcp.speech import ToolListing
from outrider.runtimes.mcp.visit import PendingCall

__all__ = ["McpServer", "McpSession", "ToolListing", "PendingCall"]
