"""HAND OVER: a trained network in, a self-describing bundle out."""
