"""The sharded dataflow graph, virtual slices, and the plan: a graph with physical places and its memory.

Plain data and what follows from it: no tracing, no devices, no decisions. It is free of JAX, so the controller and the
simulator can use it without a device.

Every later package may import it: ``trace``, ``cost``, ``program``, ``controller`` and so on. It imports ``util`` and
``errors``.
"""
