"""Metrics of the service, shared by its workers."""
