"""`rul predict`: the units of a file, answered in this process or by a server."""
