"""Whether a model is still asked what it was trained on."""
