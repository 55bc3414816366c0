"""Runs, their files, comparisons and sweeps."""
