"""Computations, programs, futures and JAX's transformations."""
