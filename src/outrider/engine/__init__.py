"""The loops that run sessions and tasks. They communicate through the journal and wake each other by hints."""
