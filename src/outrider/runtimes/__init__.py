"""What carries turns: our own loop over any model, and agents with a loop of their own."""
