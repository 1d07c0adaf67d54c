"""Our tools in another program's turn, over MCP: a small server of our own process, on loopback, behind tokens."""

from outrider.runtimes.mcp.door import Door, Guest
from outrider.runtimes.mcp.speech import Offer
from outrider.runtimes.mcp.visit import Visit

__all__ = ["Door", "Guest", "Offer", "Visit"]
