"""Monitoring of the service: Prometheus configuration and rules, and Grafana dashboards."""
