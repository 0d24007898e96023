"""Where predictions and outcomes are kept."""
