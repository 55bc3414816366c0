"""The driver for JAX devices of this process: a dispatcher, two watchers and a host lane for each island.

Time is real; nothing simulated is here.
Packages later in the import order (``tests/core/test_import_layers.py``) may import this one.
"""
