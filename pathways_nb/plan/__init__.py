"""The sharded dataflow graph, virtual slices, and the plan: a graph with physical places and its memory.

Plain data and what follows from it: no tracing, no devices, no decisions. It is free of JAX, so the controller and the
simulator can use it without a device.
Packages later in the import order (``tests/core/test_import_layers.py``) may import this one.
"""
