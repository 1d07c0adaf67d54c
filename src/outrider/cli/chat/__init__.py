"""The chat in the terminal: pure views of the journal, one screen, and what the /commands do."""
