"""Workspaces: folders that tools work in, and the commands that run there."""
