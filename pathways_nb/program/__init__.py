"""Programs: Python functions that JAX traces into a sharded dataflow graph, and the computations they call.

No device is chosen here and nothing is submitted.
Packages later in the import order (``tests/core/test_import_layers.py``) may import this one.
"""
