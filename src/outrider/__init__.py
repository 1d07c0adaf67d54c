"""Outrider: a self-hosted agent that finishes what it starts."""

__version__ = "0.1.0"
