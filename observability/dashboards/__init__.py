"""Writes the Grafana dashboards; only developers run it, the service never imports it."""
