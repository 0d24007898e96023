"""`rul top`: a running service in a terminal."""
