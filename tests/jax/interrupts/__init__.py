"""Interrupts at every instant of an operation, and at random times: the next call is right, and nothing is left."""
