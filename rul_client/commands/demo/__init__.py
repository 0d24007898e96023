"""`rul demo`: a simulated fleet in fast time."""
