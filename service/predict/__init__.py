"""`rul predict`: a file's windows, answered here or by a running service."""
