"""Estimates from a jaxpr: the FLOPs, bytes, partitioning, collectives and peak memory of a node on one device.

Nothing in this package runs a compiler or needs devices. ``primitives`` says what each primitive of JAX does;
``sharded_flat`` makes the list of operations that the other modules read; ``node_work``, ``liveness`` and
``shard_local`` answer questions about a whole node. The collectives that XLA's partitioner inserts into whole-array
code are not in a jaxpr: ``cost.hlo`` reads them from compiled code.
Packages later in the import order (``tests/core/test_import_layers.py``) may import this one.
"""
