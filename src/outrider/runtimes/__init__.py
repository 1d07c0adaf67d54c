"""Runtimes that run turns: the native loop over any model, Codex, and ACP agents."""
