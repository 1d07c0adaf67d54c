"""What several adapters need of the operating system: processes, files, locks, bounded matching, fail points."""
