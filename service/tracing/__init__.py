"""OpenTelemetry; loaded only if it is on."""
