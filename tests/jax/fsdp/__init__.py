"""Pipelines that run: gradients, order, training."""
