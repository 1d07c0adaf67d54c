"""ACP agents as a runtime."""
