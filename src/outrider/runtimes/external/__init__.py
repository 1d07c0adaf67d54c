"""What the runtimes of external programs share: process pool, approvals, recorder and history."""
