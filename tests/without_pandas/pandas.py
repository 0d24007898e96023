"""Stands in for pandas on the path of a command: to the command it is not installed."""

raise ModuleNotFoundError("No module named 'pandas'", name="pandas")
