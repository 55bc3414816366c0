"""Blocks that a loop in Python repeats: recognised, taken out, and put back by extrapolation."""
