"""HTTP: an OpenAI-compatible API, our own over sessions and tasks, and streams that resume."""
