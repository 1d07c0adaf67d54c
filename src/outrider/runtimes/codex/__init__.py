"""The Codex app-server as a runtime."""
