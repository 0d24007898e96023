"""`rul bench`: a running service under load."""
