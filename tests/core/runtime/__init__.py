"""Simulated islands on a virtual clock, without a controller."""
