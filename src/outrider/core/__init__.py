"""Pure decisions: what the facts are, what they mean, what comes next. Nothing here does I/O."""
