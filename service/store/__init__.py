"""Predictions, units and outcomes in a database."""
