"""The command `rul explain`."""
