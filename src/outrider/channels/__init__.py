"""Channels: how people and programs reach a home, besides the command line."""
