"""OpenTelemetry, where it is asked for."""
