"""Whether requests still resemble the training data."""
