"""Chips, networks and hosts as parameters with units and origins, and the links between the chips of an island.

Formulas of operations and collectives are elsewhere, so that a new chip is data and not code.
Packages later in the import order (``tests/core/test_import_layers.py``) may import this one.
"""
