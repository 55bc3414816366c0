"""Programs: Python functions that JAX traces into a sharded dataflow graph, and their computations.

No device is chosen, nothing is submitted.
"""
