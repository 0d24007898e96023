"""`rul bench`: load on a running service."""
