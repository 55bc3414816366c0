"""What carries out the controller's instructions: drivers, their event loop, runs under way, compiled plans.

No decision about order, placement or memory is taken here.
Packages later in the import order (``tests/core/test_import_layers.py``) may import this one.
"""
