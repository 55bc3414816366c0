"""The form in which the package reads a jaxpr: a flat list of operations, with calls inlined.

There is one form and one walk, so that every reader inlines the same calls: ``cost.jaxpr`` adds how arrays are
partitioned, ``program`` adds places. A jaxpr is read by its attributes, so nothing in this package imports JAX.
Packages later in the import order (``tests/core/test_import_layers.py``) may import this one.
"""
