"""The one cost model: seconds of a node, a transfer and a message, on any chip, simulated or calibrated.

Every cost is a number with its origin. Drivers and clocks are elsewhere: the simulator asks this package, and what it
answers depends on nothing but its arguments, so answers can be kept.
Packages later in the import order (``tests/core/test_import_layers.py``) may import this one.
"""
