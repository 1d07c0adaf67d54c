"""The application: puts all parts together, and is the Python API. Only this layer knows every implementation."""
