"""Common parts of every request: identity, access, admission, measurement, log line, error."""
