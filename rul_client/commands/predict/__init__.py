"""`rul predict`: predictions for the units of a file, in this process or by a server."""
