"""Another agent, reached over HTTP, as a runtime."""
