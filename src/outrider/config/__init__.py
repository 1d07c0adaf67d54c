"""What people may set, and the only place that reads the environment."""
