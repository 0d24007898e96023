"""One request on any transport: identity, access, measurement, log line, error."""
