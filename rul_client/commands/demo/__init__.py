"""`rul demo`: a simulated fleet in fast motion."""
