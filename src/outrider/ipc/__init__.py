"""Several processes, one home: one process owns it, the others are its clients over a socket in the home."""
