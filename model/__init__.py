"""LEARN: trajectories in, a trained network out."""
