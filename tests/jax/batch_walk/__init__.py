"""Losses and steps whose parts must have the loss of the whole batch."""
