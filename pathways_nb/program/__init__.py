"""Programs: Python functions that JAX traces into a sharded dataflow graph, and the computations they call.

No device is chosen here and nothing is submitted.
This package is imported by ``runtime`` and the packages that stand above it.
"""
