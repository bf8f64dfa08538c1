"""Measures speed, side by side in one run."""
