"""Puts the parts together: the only layer that knows every implementation. The Python API lives here."""
