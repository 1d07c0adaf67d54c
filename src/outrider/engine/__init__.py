"""The loops that carry sessions: door, worker, follow. They meet in the journal and never call each other's insides."""
