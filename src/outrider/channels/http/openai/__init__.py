"""The OpenAI API: chat completions, responses and models."""
