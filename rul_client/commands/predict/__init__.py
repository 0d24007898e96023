"""`rul predict`: windows of a file, answered here or by a running service."""
